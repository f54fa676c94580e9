"""The script of a case: the graph, its inputs and its recipe as source, and below them what reads and judges."""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchparity import torchapi
from torchparity.compilers.printed import embedded
from torchparity.compilers.written import request_to_json
from torchparity.errors import ResourceError
from torchparity.repro.case import Case
from torchparity.repro.looking import GRAPH, INPUTS
from torchparity.repro.source import module_text
from torchparity.repro.values import Symbol
from torchparity.request import COMPILER_OPTIONS
from torchparity.version import __version__

COMPILER, RUNTIME, JUDGE = "# --- the compiler ", "# --- the runtime ", "# --- the judge "
# What a script calls of the runtime.
CALLED = ("Reader", "read_blobs", "attach", "as_graphs", "available")
# Options of the compiler that the judge of a script is told of: whether something is recorded and replayed.
TOLD = ("mode", "options", "config")

# Python would leave with 1, which means "differs" here.
UNKNOWN_ON_ERROR = '''
import os


def no_answer(kind, error, trace):
    """An error outside the judgement (a module that is not here) is no verdict: exit code 125."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(130 if issubclass(kind, KeyboardInterrupt) else 125)


if __name__ == "__main__":
    sys.excepthook = no_answer
'''


def rule(title: str) -> str:
    """Return a section line of one length."""
    return f"{title}{'-' * (100 - len(title))}"


def upper_half(case: Case) -> str:
    """Return the text of `repro.py` up to what judges it: the graph, its inputs, its compiler, and what makes them."""
    path = "sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))\n" if case.files else ""
    parts = [
        f'"""{describe(case)}"""\n\nfrom __future__ import annotations\n',
        "import pathlib\nimport sys\nimport traceback\n\nimport torch\n" + path,
        UNKNOWN_ON_ERROR,
        f"{rule(GRAPH)}\n\n{case.graph}",
        bound_model(case),
        f"{rule(INPUTS)}\n\n{inputs_source(case)}",
        f"{rule(COMPILER)}\n\n{compiler_source(case)}",
        f"{rule(RUNTIME)}\n\n{print_runtime()}",
        f"{', '.join(CALLED)} = runtime()",
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def print_runtime() -> str:
    """Return what makes inputs, as a script holds it."""
    return enclosed("runtime", "torchparity.repro.reading", CALLED)


def enclosed(name: str, module: str, wanted: tuple[str, ...]) -> str:
    """Return a function that defines, for itself alone, what names of a module need, and returns these."""
    imports, definitions = embedded(module, *wanted)
    body = "\n".join(imports) + "\n\n" + definitions + f"\nreturn {', '.join(wanted)}\n"
    return f"def {name}():\n{textwrap.indent(body, '    ')}"


def describe(case: Case) -> str:
    """Return the head of the script: what it is, and how to run it."""
    needs = " and ".join(case.recipe.engine.modules) if case.recipe.engine is not None else ""
    if "torchparity" in str(case.recipe.backend_source()):
        needs = "torchparity, for the fault planted in its compiler"
    title = f"{case.name}: does the compiled graph compute what the graph computes?"
    stands = {"program": "as the model calls torch", "dynamo": "as the graph stands after Dynamo"}
    level = stands.get(case.level, "as the graph stands after AOT")
    facts = f"{case.compute_nodes} operations, {case.direction}, {level}"
    torch_version = case.environment.get("torch", "")
    lines = [title, "", f"{facts}; captured with torch {torch_version} by torchparity {__version__}."]
    if case.signature:
        lines.append(f"It was seen to fail: {case.signature.summary or case.signature.kind}.")
    lines += [
        "",
        "    python repro.py",
        "",
        "Exit code: 0 same, 1 differs, 2 usage, 125 unknown (for `git bisect run`).",
    ]
    lines.append(f"Needs torch and {needs}." if needs else "Needs torch alone.")
    return "\n".join(lines).replace("\\", "/").replace('"""', "'''") + "\n"


def bound_model(case: Case) -> str:
    """Return a module that derives the symbolic sizes from the tensors, where there are any to derive."""
    derived = {name: value.expression for name, value in case.symbols.items() if value.expression}
    if not derived:
        return ""
    given = [name for name, _ in case.inputs if name not in derived]
    lines = [
        "class Bound(torch.nn.Module):",
        '    """The graph with its sizes taken from the tensors, so that they may stay symbolic."""',
        "",
        "    def __init__(self, graph):",
        "        super().__init__()",
        "        self.graph = graph",
        "",
        f"    def forward(self, {', '.join(given)}):",
        *(f"        {name} = {expression}" for name, expression in derived.items()),
        f"        return self.graph({', '.join(name for name, _ in case.inputs)})",
    ]
    return "\n".join(lines)


def inputs_source(case: Case) -> str:
    """Return the functions that make the model, its inputs and the random generators' states."""
    derived = {name for name, value in case.symbols.items() if isinstance(value, Symbol) and value.expression}
    model = "as_graphs(graph)" if "\n        attach(self, " in case.graph else "graph"
    model = f"Bound({model})" if derived else model
    lines = ["def make_model(read):", "    graph = Graph()"]
    lines += [f"    attach(graph, {path!r}, {value.to_source()})" for path, value in case.constants]
    lines += [f"    return {model}", "", "", "def make_inputs(read):", "    return ["]
    lines += [f"        {value.to_source()},  # {name}" for name, value in case.inputs if name not in derived]
    lines += ["    ]", "", "", "def random_states(read):"]
    states = ", ".join(f"{device!r}: {state.to_source()}" for device, state in case.random)
    lines += [f"    return {{{states}}}", "", ""]
    lines += [f"DEVICES = {tuple(storage.device for storage in case.storages)!r}"]
    return "\n".join(lines)


def compiler_source(case: Case) -> str:
    """Return the function that compiles, and all that was asked for besides."""
    recipe = case.recipe.steps_source("model").rstrip().replace("compiled = ", "return ")
    lines = ["def compile_model(model):", *(f"    {line}" for line in recipe.splitlines() if line != "import torch")]
    every = request_to_json(case.request)
    asked = {name: value for name, value in every.items() if name not in COMPILER_OPTIONS or name in TOLD}
    asked |= {"name": case.name, "backend": case.recipe.backend_name(), "traces": case.recipe.engine is None}
    asked["ignored"] = sorted(kind.value for kind in case.recipe.ignored)
    asked["inputs"] = given_names(case)
    told = "\n".join(f"    {name!r}: {value!r}," for name, value in asked.items())
    return "\n\n\n".join(filter(None, [case.recipe.definitions().strip(), "\n".join(lines), f"ASKED = {{\n{told}\n}}"]))


def given_names(case: Case) -> list[str]:
    """Return what the graph calls the inputs that are handed to it, in order."""
    derived = {name for name, value in case.symbols.items() if value.expression}
    return [name for name, _ in case.inputs if name not in derived]


def load_script(text: str, path: str, files: dict[str, str] | None = None) -> types.ModuleType:
    """Run the text of a `repro.py` as a module of its own, without what judges it."""
    text = text.partition(f"\n{JUDGE}")[0]
    module = types.ModuleType("torchparity_case")
    module.__file__ = path
    # Tracebacks and compilers look source up by file name.
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    search = list(sys.path)
    try:
        load_files(files or {})
        exec(compile(text, path, "exec"), module.__dict__)
    finally:
        sys.path[:] = search
    return module


class Carried(importlib.abc.InspectLoader, importlib.abc.MetaPathFinder):
    """Finds the user's modules in the texts that a case carries."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return how to load a module, where it is one of ours."""
        return importlib.machinery.ModuleSpec(name, self, origin=name) if f"{name}.py" in self.files else None

    def get_source(self, fullname: str) -> str:
        """Return the text of a module."""
        return self.files[f"{fullname}.py"]

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code of a module, whose source can be looked up: Triton compiles from that."""
        text = self.get_source(fullname)
        place = f"<{fullname}.py {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
        linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
        code: types.CodeType = compile(text, place, "exec")
        return code


def load_files(files: Mapping[str, str]) -> None:
    """Import the user's modules from their texts, unless they are here already."""
    finder = Carried(files)
    sys.meta_path.insert(0, finder)
    try:
        for file in files:
            name = file.removesuffix(".py")
            with torchapi.keeping_defaults():
                module = sys.modules.get(name) or importlib.import_module(name)
            if loaded_text(module) != files[file]:
                raise ResourceError(
                    f"the case brings a module {name}, and another one of that name is loaded here",
                    hint="run the case in a process of its own, as `torchparity run` does",
                )
    finally:
        sys.meta_path.remove(finder)


def loaded_text(module: types.ModuleType) -> str | None:
    """Return the source that a module was made of, where it can be had."""
    loader = getattr(module.__spec__, "loader", None)
    if isinstance(loader, Carried):
        return loader.get_source(module.__name__)
    path = inspect.getsourcefile(module) if getattr(module, "__file__", None) else None
    return module_text(Path(path)) if path is not None and Path(path).is_file() else None
