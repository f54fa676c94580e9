"""The folders are the architecture: every import points down, and peers do not know each other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchparity
from torchparity.judge.script import print_judge

ROOT = Path(torchparity.__file__).parent
# From the top down; names on one line are peers. docs/design/index.md shows the same table.
LAYERS = (
    ("__main__",),
    ("cli", "plugin"),
    ("__init__",),
    ("verbs",),
    ("hunting", "fleet"),
    ("observe", "minifier", "diagnosis", "ranks"),
    ("judge", "releases", "programs"),
    ("workers",),
    ("graphs",),
    ("repro",),
    ("compilers",),
    ("run", "faults"),
    ("compare", "report"),
    ("records", "request", "torchapi"),
    ("errors", "stack", "version"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
# Longer than a reader likes, and why.
LONG_FILES = {"workers/pool.py": "one loop and its callers, which share every field"}
LONG_FUNCTIONS = {"compare/kernels.py:judge_kernel": "one pass over memory, and Triton takes no records"}
MOST_LINES, MOST_OF_A_FUNCTION = 400, 60


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> set[str]:
    """Return what a file imports of ours: by statement, or by a string that names a module or a job."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "torchparity":
                found |= {f"torchparity.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"torchparity(\.\w+)+(:\w+)?", str(node.value)):
            module = str(node.value).partition(":")[0]
            found |= {module} if is_ours(module) else set()
    return {name for name in found if name.split(".")[0] == "torchparity"}


def is_ours(module: str) -> bool:
    place = ROOT.joinpath(*module.split(".")[1:])
    return place.is_dir() or place.with_suffix(".py").is_file()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_point_down(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert here in LEVEL, f"{here} has no place in the table of layers"
    for module in imports(path) if here != "__init__" else ():
        there = room(module)
        assert there in LEVEL, f"{path.name} imports {module}, which has no place in the table"
        # A record, a keyword or an error may name another of the floor in a type.
        types_only = (here, there) in {("errors", "records"), ("request", "records")}
        allowed = there == here or LEVEL[there] > LEVEL[here] or types_only
        assert allowed, f"{path.relative_to(ROOT)} imports {module}: that is not below it"


def test_imports_make_no_circle():
    """Between files, wherever the import stands; a job that is named by a string is not run by who names it."""
    modules = {path: "torchparity." + ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    names = {name.removesuffix(".__init__"): path for path, name in modules.items()}
    uses: dict[Path, set[Path]] = {}
    for path in FILES:
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchparity"):
                found |= {names.get(f"{node.module}.{alias.name}") or names.get(node.module) for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {names.get(alias.name) for alias in node.names if alias.name != "torchparity"}
        uses[path] = {entry for entry in found if entry is not None and entry != path}
    for root in [path for path in FILES if path.name == "__init__.py" and path.parent == ROOT]:
        uses[root] = set()  # It imports a name when it is first used.
    done: set[Path] = set()

    def visit(path: Path, above: list[Path]) -> None:
        assert path not in above, " -> ".join(str(entry.relative_to(ROOT)) for entry in [*above, path])
        if path not in done:
            for entry in sorted(uses[path]):
                if not only_for_types(path, entry):
                    visit(entry, [*above, path])
            done.add(path)

    for path in FILES:
        visit(path, [])


def only_for_types(path: Path, other: Path) -> bool:
    """Tell whether a file imports another one for its annotations alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = "torchparity." + ".".join(other.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    guarded = [
        node
        for block in tree.body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
    ]
    every = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == name]
    return bool(every) and all(node in guarded for node in every)


def test_private_torch_is_named_in_one_room_only():
    guilty = []
    for path in FILES:
        if path.parent.name == "torchapi":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        ours = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_self(node.value)}
        ours |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
                guilty += [f"{path.name}:{node.lineno} {name}" for name in names if is_private_torch(name)]
            elif isinstance(node, ast.Attribute):
                text = ast.unparse(node)
                private = (
                    node.attr.startswith("_") and not node.attr.endswith("_") and node.attr not in (*PYTHONS, *ours)
                )
                if is_private_torch(text) or (private and not is_self(node.value)):
                    guilty.append(f"{path.name}:{node.lineno} {text}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
                name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
                if str(name).startswith("_") and not str(name).startswith("__") and name not in PYTHONS:
                    guilty.append(f"{path.name}:{node.lineno} {name}")
    assert not guilty


# Private by their look, and Python's own.
PYTHONS = ("_exit", "_fields", "_current_frames")


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_private_torch(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts[1:])


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_fits_in_the_head(path):
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES or name in LONG_FILES, f"{name} is long; say why, or split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            allowed = length <= MOST_OF_A_FUNCTION or f"{name}:{node.name}" in LONG_FUNCTIONS
            assert allowed, f"{name}:{node.name} has {length} lines; say why, or split it"


def test_a_folder_shares_no_name_with_a_public_function():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert not folders & (set(torchparity.__all__) - {"faults"})


def test_importing_torchparity_imports_no_compiler():
    code = (
        "import sys, torchparity;"
        "print([name for name in sys.modules if name.startswith(('torch._dynamo', 'torch._inductor'))])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_public_names_exist():
    for name in torchparity.__all__:
        assert getattr(torchparity, name) is not None
    assert set(torchparity.__all__) <= set(dir(torchparity))
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        torchparity.chekc  # noqa: B018


def test_public_names_come_from_where_their_imports_say():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    said = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchparity.")
        for alias in node.names
    }
    homes = {name: module for module, names in torchparity.HOMES.items() for name in names.split()}
    assert said == {**homes, "__version__": "torchparity.version"}
    assert set(torchparity.__all__) == {*said, "faults"}


def test_importing_torchparity_and_its_plugin_imports_no_torch():
    code = (
        "import sys, torchparity.plugin;"
        "print('torch' in sys.modules, sorted(name for name in sys.modules if name.startswith('torchparity')))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    light = ["torchparity", "torchparity.plugin", "torchparity.plugin.silence", "torchparity.version"]
    assert output.strip() == f"False {light}"


def test_the_command_line_imports_no_torch_to_show_its_help():
    code = "import sys, torchparity.cli.main; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"


def test_the_judge_fits_into_one_script():
    """Two modules of its own that give one name to two things are found here, and not by every bundle that is made."""
    compile(print_judge(), "judge", "exec")
