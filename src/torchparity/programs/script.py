"""A small program as a script that anyone can run: torch alone, exit code 1 while the bug is there, 0 when it is gone.

There are several ways to show a difference (outputs, inputs afterwards, gradients, strides): whoever runs them finds
out which of them holds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchparity.compilers.recipe import recipe_of
from torchparity.records import Kind
from torchparity.request import Request

FACTORY = "make"
# What a factory returns whose function is called several times.
SUBJECT, INPUT_SETS = "Subject", "input_sets"
EAGER = "lambda function: function"
# A compiler that does not come to an end: no kind of a verdict, but a bug that a script can show.
HANGS, HANG_SECONDS = "hangs", 60
# Kinds that have no tolerance.
FACTS = (Kind.STRIDE.value, Kind.ALIAS.value, Kind.REQUIRES_GRAD.value, Kind.DTYPE.value, Kind.SHAPE.value)
# What draws random numbers; and layers, which draw their weights.
DRAWS = re.compile(r"\brand|dropout|normal_|uniform_|bernoulli|multinomial")
LAYERS = re.compile(r"\bnn\.(?!functional)")
# What destroys memory dies of it sooner or later: a script that calls it so often shows that.
OFTEN = 30
CLOSE = "torch.testing.assert_close(actual, expected)"
EQUAL = "torch.testing.assert_close(actual, expected, rtol=0, atol=0)"


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script that may show a difference, and whether it does so beyond default tolerances."""

    text: str
    beyond_default: bool = True


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A program taken apart: what stands before, how its inputs are made, what is called, with what, how often.

    `module` tells that what is called is a module, which may hold parameters and buffers.
    """

    before: list[str]
    made: list[str]
    function: str
    calls: list[list[str]]
    module: bool = False

    @property
    def arguments(self) -> list[str]:
        """The inputs of all calls."""
        return list(dict.fromkeys(name for call in self.calls for name in call))

    @property
    def call(self) -> str:
        """The call of what `wrap` makes of the function; several calls as a list."""
        if len(self.calls) == 1:
            return f"wrap({self.function})({', '.join(self.calls[0])})"
        each = [f"wrapped({', '.join(call)})" for call in self.calls]
        return f"[{', '.join(each)}]"

    @property
    def prepared(self) -> list[str]:
        """What stands before several calls of one wrapped function."""
        return [f"wrapped = wrap({self.function})"] if len(self.calls) > 1 else []


def pieces_of(text: str) -> Pieces | None:
    """Take a program apart; None where its factory returns no `function, arguments`, function or subject."""
    tree = ast.parse(text)
    factory = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FACTORY), None)
    returned = factory.body[-1] if factory is not None else None
    called = called_by(returned.value) if isinstance(returned, ast.Return) else None
    if factory is None or called is None:
        return None
    function, given = called
    made, calls = [ast.unparse(node) for node in factory.body[:-1]], []
    for arguments in given:
        names = []
        for place, argument in enumerate(arguments):
            if isinstance(argument, ast.Name):
                names.append(argument.id)
            else:
                names.append(free_name(place, made))
                made.append(f"{names[-1]} = {ast.unparse(argument)}")
        calls.append(names)
    name, module = ast.unparse(function), isinstance(function, ast.Call)
    if module:
        made, name = [*made, f"module = {name}"], "module"
    before = [ast.unparse(node) for node in tree.body if node is not factory and not imports_us(node)]
    return Pieces(before=before, made=made, function=name, calls=calls, module=module)


def called_by(returned: ast.expr | None) -> tuple[ast.expr, list[list[ast.expr]]] | None:
    """Return what a factory returns: a function, and the arguments of each of its calls."""
    if isinstance(returned, ast.Tuple) and len(returned.elts) == 2:
        return returned.elts[0], [parts_of(returned.elts[1])]
    if isinstance(returned, ast.Call) and ast.unparse(returned.func).endswith(SUBJECT) and returned.args:
        sets = next((keyword.value for keyword in returned.keywords if keyword.arg == INPUT_SETS), None)
        return (returned.args[0], [parts_of(entry) for entry in parts_of(sets)]) if sets is not None else None
    # A function that takes nothing may stand alone.
    return (returned, [[]]) if isinstance(returned, ast.Name | ast.Attribute | ast.Lambda | ast.Call) else None


def parts_of(several: ast.expr) -> list[ast.expr]:
    """Return the elements of a tuple or a list; a lone expression is one."""
    return list(several.elts) if isinstance(several, ast.Tuple | ast.List) else [several]


def free_name(place: int, made: Sequence[str]) -> str:
    """Return a name for an argument that has none, and that no line has given yet."""
    taken = {line.partition(" = ")[0] for line in made}
    names = ["xyzuvw"[place] if place < 6 else f"x{place}", *(f"x{number}" for number in range(len(made) + 8))]
    return next(name for name in names if name not in taken)


def imports_us(node: ast.stmt) -> bool:
    """Tell whether a line imports torchparity, which a script does without."""
    return isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["torchparity"]


def scripts(text: str, kind: str, leaves: Sequence[str], request: Request) -> Iterator[Script]:
    """Yield scripts that may show a difference of a kind, at leaves, the likeliest first."""
    pieces = pieces_of(text)
    if pieces is None:
        return
    compiled = compiling(request)
    for body in bodies(pieces, kind, leaves):
        lines = [*headed(pieces.before, settings(request)), "", "def run(wrap):"]
        made = ["torch.manual_seed(0)", *pieces.made] if DRAWS.search(text) or LAYERS.search(text) else pieces.made
        lines += [f"    {line}" for statement in [*made, *pieces.prepared, *body] for line in statement.splitlines()]
        for check in checks(kind, compiled):
            yield Script(text="\n".join([*lines, "", *check, ""]), beyond_default=EQUAL not in check)


def headed(before: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the first lines of a script: imports once, what is set, then the program. Its checks need torch itself."""
    lines = [*before, *settings]
    imports = list(dict.fromkeys(line for line in lines if line.startswith(("import ", "from "))))
    imports += ["import torch"] if "import torch" not in imports else []
    rest = [line for line in before if line not in imports]
    return [*imports, *(line for line in settings if line not in imports), "", *rest]


def checks(kind: str, compiled: str) -> Iterator[list[str]]:
    """Yield the lines that hold a compiled run against an eager one: default tolerances first, then none."""
    if kind == Kind.RAISES.value:
        yield [f"run({EAGER})", f"run({compiled})"]
    elif kind == Kind.ACCEPTS_INVALID.value:
        refused = ["try:", f"    run({EAGER})", "except Exception:", "    try:", f"        print(run({compiled}))"]
        yield [*refused, "    except Exception:", "        raise SystemExit(0)", "    assert False, 'eager refuses it'"]
    elif kind == HANGS:
        watch = f"faulthandler.dump_traceback_later({HANG_SECONDS}, exit=True)"
        yield ["import faulthandler", f"run({EAGER})", watch, f"run({compiled})"]
    elif kind == Kind.CRASHES.value:
        begins = ["import os, signal", f"run({EAGER})", "if os.fork() == 0:"]
        ends = ["    os._exit(0)", "status = os.wait()[1]", "assert status == 0, signal.Signals(status & 127).name"]
        for calls in ([f"    run({compiled})"], [f"    for _ in range({OFTEN}):", f"        run({compiled})"]):
            yield [*begins, *calls, *ends]
    else:
        both = f"expected, actual = run({EAGER}), run({compiled})"
        yield [both, CLOSE]
        if kind not in FACTS:
            yield [both, EQUAL]


def bodies(pieces: Pieces, kind: str, leaves: Sequence[str]) -> Iterator[list[str]]:
    """Yield what a run does with the inputs, and what it gives back."""
    call, listed = pieces.call, f"[{', '.join(pieces.arguments)}]"
    held = f"[{', '.join([*pieces.arguments, '*module.parameters()'])}]" if pieces.module else listed
    results = [f"results = {call}", "results = results if isinstance(results, (tuple, list)) else (results,)"]
    if len(pieces.calls) > 1:
        flat = "part for each in results for part in (each if isinstance(each, tuple) else (each,))"
        results[1] = f"results = [{flat}]"
    wanted = (
        "(part * torch.arange(1, part.numel() + 1).view(part.shape)).sum() for part in results if part.requires_grad"
    )
    backward = [*results, f"sum({wanted}).backward()"]
    tensors, parts = f"({', '.join([*pieces.arguments, '*results'])})", "results"
    if kind == Kind.ALIAS.value or any("input" in leaf for leaf in leaves):
        # What a program writes to is looked at as well; a result may be anything.
        parts = f"{tensors} if isinstance(part, torch.Tensor)"
    owners = f"owners = [part.untyped_storage().data_ptr() for part in {parts}]"
    ways = {
        "output": [f"return {call}"],
        "input": [call, f"return {listed}"],
        "grad": [*backward, f"return [given.grad for given in {held} if given.grad is not None]"],
        "buffer": [call, "return [*module.buffers()]"],
        Kind.STRIDE.value: [*results, f"return [part.stride() for part in {parts}]"],
        Kind.ALIAS.value: [*results, owners, "return [one == other for one in owners for other in owners]"],
        Kind.REQUIRES_GRAD.value: [*results, f"return [part.requires_grad for part in {parts}]"],
    }
    if kind in (Kind.RAISES.value, Kind.ACCEPTS_INVALID.value, Kind.CRASHES.value, HANGS):
        order = ["output", "grad"]
    elif kind in ways:
        order = [kind]
    else:
        seen = [name for name in ("grad", "input", "buffer") if any(name in leaf for leaf in leaves)]
        order = list(dict.fromkeys([*seen, "output", "input", "grad", "buffer"]))
        order = [name for name in order if name != "buffer" or pieces.module]
    for name in order:
        yield ways[name]


def compiling(request: Request) -> str:
    """Return an expression for what compiles a function as a request says."""
    recipe = recipe_of(request)
    _, backend = recipe.backend_source()
    named = [] if backend == repr("inductor") else [f"backend={backend}"]
    call = recipe.call_source("function", *named)
    return "torch.compile" if call == "torch.compile(function)" else f"lambda function: {call}"


def settings(request: Request) -> list[str]:
    """Return the lines that set the compiler up, and gradients, as a request says."""
    without = ["torch.set_grad_enabled(False)"] if not request.differentiates else []
    return [*recipe_of(request).settings_source(), *without]
