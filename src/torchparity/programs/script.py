"""A small program as a script that anyone can run: torch alone, exit code 1 while the bug is there.

There are several ways to show a difference (outputs, inputs afterwards, gradients, strides); the first that holds is
delivered. It holds if the script exits with 1, and with 0 where nothing is compiled.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchparity.records import Kind

SECONDS = 120.0
FACTORY = "make"
# torch's own switch: where it is set, torch.compile compiles nothing.
NOT_COMPILED = {"TORCH_COMPILE_DISABLE": "1"}
# Kinds that have no tolerance.
FACTS = (Kind.STRIDE.value, Kind.ALIAS.value, Kind.REQUIRES_GRAD.value, Kind.DTYPE.value, Kind.SHAPE.value)
CLOSE = "torch.testing.assert_close(actual, expected)"
EQUAL = "torch.testing.assert_close(actual, expected, rtol=0, atol=0)"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A script that shows a bug, what it printed last, and whether default tolerances are exceeded."""

    text: str
    output: str
    beyond_default: bool


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


def pieces_of(text: str) -> Pieces:
    """Take a program apart: the file has a factory `make` that ends in `return function, arguments`."""
    tree = ast.parse(text)
    factory = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FACTORY)
    before = [ast.unparse(node) for node in tree.body if node is not factory]
    made = [ast.unparse(node) for node in factory.body[:-1]]
    returned = factory.body[-1]
    if not isinstance(returned, ast.Return) or not isinstance(returned.value, ast.Tuple):
        raise ValueError("the factory does not end in `return function, arguments`")
    function, given = returned.value.elts[0], returned.value.elts[1]
    arguments = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
    names = []
    for place, argument in enumerate(arguments):
        if isinstance(argument, ast.Name):
            names.append(argument.id)
        else:
            name = _free_name(function, place)
            made.append(f"{name} = {ast.unparse(argument)}")
            names.append(name)
    return Pieces(before=before, made=made, function=ast.unparse(function), arguments=names)


def _free_name(function: ast.expr, place: int) -> str:
    return "xyzuvw"[place] if place < 6 else f"x{place}"


def scripts(text: str, kind: str, leaves: tuple[str, ...], options: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield scripts that may show a difference, each with whether it uses default tolerances, the likeliest first."""
    pieces = pieces_of(text)
    more = _compile_options(options)
    compiled = f"lambda function: torch.compile(function, {more})" if more else "torch.compile"
    for body, check in _bodies(pieces, kind, leaves):
        lines = [*pieces.before, *_settings(options), "", "def run(wrap):"]
        lines += [f"    {line}" for statement in [*pieces.made, *body] for line in statement.splitlines()]
        if check == "raises":
            yield "\n".join([*lines, "", "run(lambda function: function)", f"run({compiled})", ""]), True
            continue
        if check == "accepts":
            lines += ["", "try:", "    run(lambda function: function)", "except Exception as error:"]
            lines += ["    print('eager raises', error)", f"    print('compiled returns', run({compiled}))"]
            yield "\n".join([*lines, "    raise SystemExit(1)", ""]), True
            continue
        if check == "dies":
            lines = ["import os", *lines, "", "run(lambda function: function)", "if os.fork() == 0:"]
            lines += [f"    run({compiled})", "    os._exit(0)"]
            yield "\n".join([*lines, "assert os.wait()[1] == 0, 'the compiled program dies'", ""]), True
            continue
        for form in (CLOSE, EQUAL) if kind not in FACTS else (CLOSE,):
            told = [*lines, "", f"expected, actual = run(lambda function: function), run({compiled})"]
            yield "\n".join([*told, form, ""]), form == CLOSE


def _bodies(pieces: Pieces, kind: str, leaves: tuple[str, ...]) -> Iterator[tuple[list[str], str]]:
    """Yield what a run does with the inputs, and how the two runs are held against each other."""
    call, inputs = pieces.call, ", ".join(pieces.arguments)
    listed = f"[{inputs}]"
    results = [f"results = {call}", "results = results if isinstance(results, tuple) else (results,)"]
    wanted = "(part * torch.arange(part.numel()).view(part.shape)).sum() for part in results if part.requires_grad"
    backward = [*results, f"sum({wanted}).backward()"]
    shares = "part.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()"
    ways: dict[str, tuple[list[str], str]] = {
        "output": ([f"return {call}"], "close"),
        "input": ([call, f"return {listed}"], "close"),
        "grad": ([*backward, f"return [given.grad for given in {listed} if given.grad is not None]"], "close"),
        "stride": ([*results, "return [part.stride() for part in results]"], "close"),
        "alias": ([*results, f"return [{shares} for part in results for given in {listed}]"], "close"),
        "requires_grad": ([*results, "return [part.requires_grad for part in results]"], "close"),
        "both": ([f"return {call}, {listed}"], "close"),
    }
    if kind == Kind.RAISES.value:
        yield [call], "raises"
        yield backward, "raises"
        return
    if kind == Kind.ACCEPTS_INVALID.value:
        yield [f"return {call}"], "accepts"
        yield backward, "accepts"
        return
    if kind == Kind.CRASHES.value:
        yield [call], "dies"
        yield backward, "dies"
        return
    first = next(
        (name for name in ("grad", "input", "output") if any(leaf.startswith(name) for leaf in leaves)), "output"
    )
    if kind in ways:
        yield ways[kind]
        return
    for name in dict.fromkeys([first, "output", "input", "grad", "both"]):
        yield ways[name]


def _compile_options(options: Mapping[str, Any]) -> str:
    named = {name: options[name] for name in ("dynamic", "mode", "fullgraph", "backend") if options.get(name)}
    return ", ".join(f"{name}={value!r}" for name, value in named.items() if (name, value) != ("backend", "inductor"))


def _settings(options: Mapping[str, Any]) -> list[str]:
    known = {"inductor": "torch._inductor.config", "dynamo": "torch._dynamo.config"}
    found = []
    for name, value in dict(options.get("config") or {}).items():
        room, _, rest = name.partition(".")
        found += [f"import {known[room].rpartition('.')[0]}", f"{known[room]}.{rest} = {value!r}"]
    if options.get("no_grad"):
        found.append("torch.set_grad_enabled(False)")
    return list(dict.fromkeys(found))


def shown_by(
    text: str, kind: str, leaves: tuple[str, ...], options: Mapping[str, Any], *, python: str = sys.executable
) -> Shown | None:
    """Return the first script that holds; None where none does."""
    for script, default in scripts(text, kind, leaves, options):
        code, output = run_script(script, {}, python)
        if code == 1 and run_script(script, NOT_COMPILED, python)[0] == (
            1 if kind == Kind.ACCEPTS_INVALID.value else 0
        ):
            return Shown(text=script, output=output, beyond_default=default)
    return None


def run_script(script: str, more: Mapping[str, str], python: str) -> tuple[int, str]:
    """Run a script in a process of its own; return its exit code and the end of what it printed."""
    with tempfile.TemporaryDirectory(prefix="torchparity-script-") as folder:
        place = Path(folder) / "repro.py"
        place.write_text(script, encoding="utf-8")
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, **more}
        try:
            done = subprocess.run(
                [python, place.name],
                cwd=folder,
                env=environment,
                timeout=SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, "it did not end"
    return done.returncode, (done.stdout + done.stderr)[-2000:]
