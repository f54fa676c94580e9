"""Programs of 60 to 200 lines with one wrong operation end at the known minimum. The compiler here is a planted one."""

import ast
import itertools
import random

import pytest
import torch

from torchparity.programs.small import Budget, make_small

# An operation, and how a compiler that is wrong computes it.
FAULTS = {
    "torch.cumsum({x}, 0)": ("cumsum", lambda right, *args: right(*args) + 1),
    "{x}.flip(0)": ("flip", lambda right, x, *args: x),
    "torch.where({x} > 0, {x}, 0)": ("where", lambda right, mask, x, y: x),
    "{x}.clamp(-1, 2)": ("clamp", lambda right, x, *args: x * 1.5 + 7),
    "torch.roll({x}, 1)": ("roll", lambda right, x, *args: right(x, 2)),
    "torch.sort({x}).values": ("sort", lambda right, x: type(right(x))((right(x).values + 3, right(x).indices))),
    "torch.maximum({x}, {y})": ("maximum", lambda right, x, y: right(x, y) + 5),
    "{x}.unfold(0, 5, 1)[0]": ("unfold", lambda right, x, *args: right(x, *args) + 1),
}
PLAIN = (
    "{x} + {y}", "{x} * 0.5", "{x} - 1", "torch.neg({x})", "{x}.abs()", "torch.tanh({x})", "{x} / 4", "{x}.view(-1)",
    "torch.cat([{x}[1:], {x}[:1]])", "torch.stack([{x}, {x}]).sum(0)", "torch.minimum({x}, {y})",
    "torch.relu({x}) + {y}",
)  # fmt: skip
HEAD = """import torch

state = []

def helper(h):
    if len(state) > 3:
        return h + 0
    return h * 1
"""


def program_of(seed: int) -> tuple[str, str]:
    """Return a program of 60 to 200 lines with control flow, helpers and state around one operation that is wrong."""
    dice = random.Random(seed)
    names = ["a", "b"]
    wrong = dice.choice(list(FAULTS))
    total = dice.randint(55, 190)
    place = dice.randrange(10, total - 10)
    lines = []
    for number in range(total):
        form = wrong if number == place else dice.choice(PLAIN)
        x, y = dice.choice(names[-6:]), dice.choice(names[-6:])
        text = form.format(x=x, y=y)
        name = f"v{number}"
        chance = dice.random()
        if number != place and chance < 0.08:
            lines += [f"if len({x}) > 1:", f"    {name} = {text}", "else:", f"    {name} = {x}"]
        elif number != place and chance < 0.12:
            lines += [f"{name} = {x}", "for step in range(2):", f"    {name} = {name} + step"]
        elif number != place and chance < 0.16:
            lines += [f"{name} = helper({x})", "state.append(1)"]
        else:
            lines.append(f"{name} = {text}")
        names.append(name)
    kept = f"v{place}"
    lines.append(f"return {kept}, {names[-1]}, {{'last': {names[-2]}}}")
    body = "\n".join(f"    {line}" for line in lines)
    inputs = "    a = torch.tensor([3.0, -1.0, 2.0, 5.0, -4.0])\n    b = a.flip(0) + 1\n    return program, (a, b)\n"
    return f"{HEAD}\ndef program(a, b):\n{body}\n\ndef make():\n{inputs}", wrong


def differs(text: str, wrong: str) -> bool:
    """Run a program with torch as it is, and with a compiler that is wrong at one operation."""
    name, broken = FAULTS[wrong]
    results = []
    for planted in (False, True):
        namespace: dict = {}
        try:
            exec(text, namespace)
            function, inputs = namespace["make"]()
        except Exception:
            return False
        places = [holder for holder in (torch, torch.Tensor) if hasattr(holder, name)]
        with pytest.MonkeyPatch.context() as patch:
            for holder in places if planted else ():
                right = getattr(holder, name)
                patch.setattr(holder, name, lambda *args, right=right: broken(right, *args))
            try:
                results.append(function(*inputs))
            except Exception:
                return False
    left, right = (torch.utils._pytree.tree_leaves(found) for found in results)
    return len(left) == len(right) and any(
        isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor) and not torch.equal(one, two)
        for one, two in zip(left, right, strict=True)
    )


def reduce(seed: int) -> tuple[str, str]:
    drawn = (program_of(100 * seed + attempt) for attempt in itertools.count())
    text, wrong = next(entry for entry in drawn if differs(*entry))  # A wrong order of equal numbers is not seen.
    assert 60 <= len(text.splitlines()) <= 400

    def question(texts):
        return next((place for place, entry in enumerate(texts) if differs(entry, wrong)), None)

    found = make_small(text, question, budget=Budget(questions=20000, seconds=120.0))
    assert found.finished
    assert differs(found.text, wrong)
    return found.text, wrong


def assert_minimal(text: str, wrong: str) -> None:
    """One operation is left, that which is wrong, and what its form needs around it."""
    name = FAULTS[wrong][0]
    tree = ast.parse(text)
    function = next(node for node in tree.body if getattr(node, "name", "") == "program")
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    assert len(function.body) == 1, text
    assert [getattr(call.func, "attr", "") for call in calls] == [name], text
    assert not any(isinstance(node, ast.If | ast.For | ast.While) for node in ast.walk(tree)), text
    assert len(text.strip().splitlines()) <= 7, text


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_fault_ends_at_the_minimum(seed):
    assert_minimal(*reduce(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 46))
def test_forty_planted_faults_end_at_the_minimum(seed):
    assert_minimal(*reduce(seed))


def test_a_budget_is_kept():
    text, _ = program_of(0)
    asked = []

    def question(texts):
        asked.extend(texts)
        return

    found = make_small(text, question, budget=Budget(questions=20, together=4))
    assert not found.finished
    assert len(asked) <= 24


def test_what_nobody_answered_is_asked_again():
    """After one of several texts helped, those behind it were not looked at, and are not taken for refused."""
    seen = []

    def question(texts):
        seen.append(list(texts))
        return 1 if len(seen) == 1 else None

    make_small("f(x)\ng(x)\nh(x)\n", question, budget=Budget(together=3))
    assert any(text in later for text in seen[0][2:] for later in seen[1:]) or len(seen) > 1
