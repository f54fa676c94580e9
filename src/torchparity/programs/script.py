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
EAGER = "lambda function: function"
# A compiler that does not come to an end: no kind of a verdict, but a bug that a script can show.
HANGS, HANG_SECONDS = "hangs", 60
# Kinds that have no tolerance.
FACTS = (Kind.STRIDE.value, Kind.ALIAS.value, Kind.REQUIRES_GRAD.value, Kind.DTYPE.value, Kind.SHAPE.value)
# What draws random numbers: values that are made, and layers, which draw their weights.
RANDOM = re.compile(r"\brand|\bnn\.|dropout|normal_|uniform_|bernoulli|multinomial")
CLOSE = "torch.testing.assert_close(actual, expected)"
EQUAL = "torch.testing.assert_close(actual, expected, rtol=0, atol=0)"


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script that may show a difference, and whether it does so beyond default tolerances."""

    text: str
    beyond_default: bool = True


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A program taken apart: what stands before, how its inputs are made, what is called with what."""

    before: list[str]
    made: list[str]
    function: str
    arguments: list[str]

    @property
    def call(self) -> str:
        """The call of what `wrap` makes of the function."""
        return f"wrap({self.function})({', '.join(self.arguments)})"


def pieces_of(text: str) -> Pieces | None:
    """Take a program apart; None where its factory does not end in `return function, arguments`."""
    tree = ast.parse(text)
    factory = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FACTORY), None)
    returned = factory.body[-1] if factory is not None else None
    if factory is None or not isinstance(returned, ast.Return) or not isinstance(returned.value, ast.Tuple):
        return None
    if len(returned.value.elts) != 2:
        return None
    function, given = returned.value.elts
    made, names = [ast.unparse(node) for node in factory.body[:-1]], []
    for place, argument in enumerate(given.elts if isinstance(given, ast.Tuple | ast.List) else [given]):
        if isinstance(argument, ast.Name):
            names.append(argument.id)
        else:
            names.append("xyzuvw"[place] if place < 6 else f"x{place}")
            made.append(f"{names[-1]} = {ast.unparse(argument)}")
    before = [ast.unparse(node) for node in tree.body if node is not factory]
    return Pieces(before=before, made=made, function=ast.unparse(function), arguments=names)


def scripts(text: str, kind: str, leaves: Sequence[str], request: Request) -> Iterator[Script]:
    """Yield scripts that may show a difference of a kind, at leaves, the likeliest first."""
    pieces = pieces_of(text)
    if pieces is None:
        return
    compiled = compiling(request)
    for body in bodies(pieces, kind, leaves):
        lines = [*pieces.before, *settings(request), "", "def run(wrap):"]
        made = ["torch.manual_seed(0)", *pieces.made] if RANDOM.search(text) else pieces.made
        lines += [f"    {line}" for statement in [*made, *body] for line in statement.splitlines()]
        for check in checks(kind, compiled):
            yield Script(text="\n".join([*lines, "", *check, ""]), beyond_default=EQUAL not in check)


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
        child = ["import os, signal", f"run({EAGER})", "if os.fork() == 0:", f"    run({compiled})", "    os._exit(0)"]
        yield [*child, "status = os.wait()[1]", "assert status == 0, signal.Signals(status & 127).name"]
    else:
        both = f"expected, actual = run({EAGER}), run({compiled})"
        yield [both, CLOSE]
        if kind not in FACTS:
            yield [both, EQUAL]


def bodies(pieces: Pieces, kind: str, leaves: Sequence[str]) -> Iterator[list[str]]:
    """Yield what a run does with the inputs, and what it gives back."""
    call, listed = pieces.call, f"[{', '.join(pieces.arguments)}]"
    results = [f"results = {call}", "results = results if isinstance(results, tuple) else (results,)"]
    wanted = "(part * torch.arange(part.numel()).view(part.shape)).sum() for part in results if part.requires_grad"
    backward = [*results, f"sum({wanted}).backward()"]
    shares = "part.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()"
    ways = {
        "output": [f"return {call}"],
        "input": [call, f"return {listed}"],
        "grad": [*backward, f"return [given.grad for given in {listed} if given.grad is not None]"],
        Kind.STRIDE.value: [*results, "return [part.stride() for part in results]"],
        Kind.ALIAS.value: [*results, f"return [{shares} for part in results for given in {listed}]"],
        Kind.REQUIRES_GRAD.value: [*results, "return [part.requires_grad for part in results]"],
    }
    if kind in (Kind.RAISES.value, Kind.ACCEPTS_INVALID.value, Kind.CRASHES.value, HANGS):
        order = ["output", "grad"]
    elif kind in ways:
        order = [kind]
    else:
        seen = [name for name in ("grad", "input") if any(leaf.startswith(name) for leaf in leaves)]
        order = list(dict.fromkeys([*seen, "output", "input", "grad"]))
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
