"""The folders are the architecture: every import points down, and peers do not know each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torchparity

ROOT = Path(torchparity.__file__).parent
# From the top down; names on one line are peers.
LAYERS = (
    ("__main__",),
    ("cli", "plugin"),
    ("evidence",),
    ("__init__",),
    ("pipeline", "sweep"),
    ("jobs",),
    ("observe", "minifier", "diagnosis", "report"),
    ("execute",),
    ("graphs",),
    ("repro",),
    ("run", "faults"),
    ("compare",),
    ("errors", "records", "torchapi", "version"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Peers that may import each other: the bottom, where an error carries a record.
FLOOR = len(LAYERS) - 1


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "torchparity":
                found |= {f"torchparity.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return {name for name in found if name.split(".")[0] == "torchparity"}


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_imports_point_down(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert here in LEVEL, f"{here} has no place in the table of layers"
    for module in imports(path):
        there = room(module)
        if there == here:
            continue
        assert there in LEVEL, f"{path.name} imports {module}, which has no place in the table"
        downward = LEVEL[there] > LEVEL[here] or LEVEL[there] == LEVEL[here] == FLOOR
        assert downward, f"{path.relative_to(ROOT)} imports {module}: that is not below it"


def test_private_torch_is_named_in_one_file_only():
    guilty = []
    for path in FILES:
        if path.parent.name == "torchapi" or path.name == "standalone.py":
            continue  # The second is written into scripts that must run without torchparity.
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names = [f"{node.module}.{name}" for name in names] if isinstance(node, ast.ImportFrom) else names
            elif isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            else:
                continue
            guilty += [f"{path.name}:{node.lineno} {name}" for name in names if is_private_torch(name)]
    assert not guilty


def is_private_torch(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts[1:])


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
    assert output.strip() == "False ['torchparity', 'torchparity.plugin', 'torchparity.version']"


def test_the_command_line_imports_no_torch_to_show_its_help():
    code = "import sys, torchparity.cli.main; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
