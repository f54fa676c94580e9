"""A suite: a TOML or Python file that says which targets are checked in which ways; read into cells.

[[target]]
of = ["models.py:small", "zoo/*.py:make"]     a name, a list, or a glob of files with a factory
parameters = { layers = [2, 4] }              what the factory gets, each with one value or several
timeout = 120                                 seconds; also memory (GiB), labels, skip, only, any option of `check`
skip = [{ backend = "aot_eager", train = true }]

[matrix]                                      every option of `check`, device, dtype, batch: one value or several
backend = ["inductor", "aot_eager"]

[limits]
timeout = 300
"""

from __future__ import annotations

import fnmatch
import glob
import importlib.util
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchparity.errors import UsageError
from torchparity.fleet.cells import SECONDS, Cell
from torchparity.request import EVERY, request_for, suggestion

# What a cell is told beside the options of a request.
PLACES = ("device", "dtype", "batch")
OPTIONS = (*EVERY, *PLACES)
LIMITS = ("timeout", "memory")
OF_TARGET = ("of", "parameters", "labels", "skip", "only", *LIMITS)
SECTIONS = ("target", "matrix", "limits", "skip", "only")
# Options whose one value is a list, or a table.
LISTS, TABLES = ("ignore",), ("options", "config")
NAME = "suite"
GIB = 2**30


def read_suite(path: Path) -> list[Cell]:
    """Return the cells of a suite, in its order; refuse what it cannot mean."""
    return cells_of(read_file(path), base=path.parent, name=str(path))


def read_file(path: Path) -> Mapping[str, Any]:
    """Return what a suite says, as plain data."""
    if not path.is_file():
        raise UsageError(f"there is no suite {path}", hint="name a TOML file, a Python file, or `--suite transformers`")
    if path.suffix == ".py":
        return read_python(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}", hint="see docs/sweep.md for what a suite looks like") from error


def read_python(path: Path) -> Mapping[str, Any]:
    """Run a suite in Python; its `suite` is a mapping as TOML would give it, or a function that returns one."""
    spec = importlib.util.spec_from_file_location(f"torchparity_suite_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = getattr(module, NAME, None)
        found = found() if callable(found) else found
    except Exception as error:
        raise UsageError(
            f"{path} raises {type(error).__name__}: {error}", hint="run it alone in Python to see the whole traceback"
        ) from error
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{path} has no `{NAME}`", hint=f"define `{NAME}` as a mapping with target and matrix, or a function of it"
        )
    return found


def cells_of(suite: Mapping[str, Any], *, base: Path, name: str) -> list[Cell]:
    """Return the cells that a suite means; files are named as seen from `base`."""
    known_keys(suite, SECTIONS, name)
    matrix, limits = table(suite, "matrix", name), table(suite, "limits", name)
    known_keys(matrix, OPTIONS, f"{name} [matrix]")
    known_keys(limits, LIMITS, f"{name} [limits]")
    targets = suite.get("target", [])
    targets = targets if isinstance(targets, Sequence) and not isinstance(targets, str) else [targets]
    if not targets:
        raise UsageError(f"{name} has no target", hint="add a [[target]] with `of`")
    found: dict[str, Cell] = {}
    for target in targets:
        if not isinstance(target, Mapping):
            raise UsageError(f"{name} has a target that is no table", hint="write [[target]], and `of` below it")
        for cell in target_cells(target, matrix, limits, base=base, name=name):
            if wanted(cell, [*rules(suite, "only", name)], default=True) and not wanted(
                cell, rules(suite, "skip", name), default=False
            ):
                found.setdefault(cell.key, cell)
    if not found:
        raise UsageError(f"{name} leaves nothing to run", hint="its skip and only rules exclude every cell")
    return list(found.values())


def target_cells(
    target: Mapping[str, Any], matrix: Mapping[str, Any], limits: Mapping[str, Any], *, base: Path, name: str
) -> Iterator[Cell]:
    """Yield the cells of one [[target]]."""
    place = f"{name} [[target]]"
    known_keys(target, (*OF_TARGET, *OPTIONS), place)
    if "of" not in target:
        raise UsageError(f"{place} has no `of`", hint='name what is checked: of = "models.py:small"')
    own = {option: value for option, value in target.items() if option in OPTIONS}
    ways = list(combinations({**matrix, **own}))
    limit = {**limits, **{key: target[key] for key in LIMITS if key in target}}
    for options in ways:
        request_for("check", {option: value for option, value in options.items() if option not in PLACES})
    for title in names_of(target["of"], base):
        for parameters in combinations(table(target, "parameters", place), options=False):
            for options in ways:
                cell = Cell(
                    target=title,
                    parameters=parameters,
                    options=options,
                    seconds=positive(limit.get("timeout", SECONDS), "timeout", place),
                    memory=int(positive(limit["memory"], "memory", place) * GIB) if "memory" in limit else None,
                    labels=tuple(map(str, listed(target.get("labels", ())))),
                )
                only, skip = rules(target, "only", place), rules(target, "skip", place)
                if wanted(cell, only, default=True) and not wanted(cell, skip, default=False):
                    yield cell


def names_of(of: Any, base: Path) -> Iterator[str]:
    """Yield the targets that `of` names; a glob stands for every file that it matches, in alphabetical order."""
    for entry in listed(of):
        place, colon, name = str(entry).rpartition(":")
        if not colon or not place or not name:
            raise UsageError(f"{entry!r} names no target", hint="write file.py:name or package.module:name")
        if not place.endswith(".py"):
            yield str(entry)
            continue
        if glob.has_magic(place):
            files = sorted(str(path.relative_to(base)) for path in base.glob(place) if path.is_file())
            if not files:
                raise UsageError(f"no file matches {place!r} in {base}", hint="globs are seen from the suite's folder")
        else:
            files = [place]
            if not (base / place).is_file():
                raise UsageError(f"there is no file {base / place}", hint="files are seen from the suite's folder")
        yield from (f"{file}:{name}" for file in files)


def combinations(choices: Mapping[str, Any], *, options: bool = True) -> Iterator[dict[str, Any]]:
    """Yield every combination of one value for each name: `{a = [1, 2], b = 3}` is a=1 b=3, then a=2 b=3."""
    names = list(choices)
    for values in itertools.product(*(several(name, choices[name], options=options) for name in names)):
        yield dict(zip(names, values, strict=True))


def several(name: str, value: Any, *, options: bool) -> list[Any]:
    """Return the values that a name may have: a list has several, unless one value of the option is a list itself."""
    if options and name in LISTS:
        return list(value) if value and isinstance(value[0], list | tuple) else [value]
    if isinstance(value, list | tuple):
        if not value:
            raise UsageError(f"`{name}` has no value", hint="give one value, or a list of at least one")
        return list(value)
    return [value]


def rules(holder: Mapping[str, Any], word: str, name: str) -> list[Mapping[str, Any]]:
    """Return the rules that say which cells are left out, or the only ones."""
    found = listed(holder.get(word, ()))
    for rule in found:
        if not isinstance(rule, Mapping) or not rule:
            raise UsageError(
                f"{name}: `{word}` holds {rule!r}", hint='a rule is a table: { backend = "inductor", train = true }'
            )
        known_keys(rule, ("of", "reason", "labels", *OPTIONS), f"{name} {word}")
    return found


def wanted(cell: Cell, some: Sequence[Mapping[str, Any]], *, default: bool) -> bool:
    """Tell whether one of some rules is about a cell; without a rule, the default."""
    return any(matches(cell, rule) for rule in some) if some else default


def matches(cell: Cell, rule: Mapping[str, Any]) -> bool:
    """Tell whether everything that a rule says holds for a cell; what a cell does not say is not said by a rule."""
    for name, value in rule.items():
        if name == "reason":
            continue
        if name == "of":
            held = any(fnmatch.fnmatchcase(cell.title, str(pattern)) for pattern in listed(value))
        elif name == "labels":
            held = bool(set(map(str, listed(value))) & set(cell.labels))
        else:
            held = cell.options.get(name) in listed(value)
        if not held:
            return False
    return True


def listed(value: Any) -> list[Any]:
    """Return several things as a list, and one thing as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def table(holder: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    """Return a table of a suite; an empty one where it has none."""
    found = holder.get(key, {})
    if not isinstance(found, Mapping):
        raise UsageError(f"{name}: `{key}` is no table", hint=f"write [{key}], and names with their values below it")
    return found


def known_keys(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse a key that nobody knows."""
    for key in found:
        if key not in known:
            raise UsageError(f"{where} has no {key!r}", hint=suggestion(key, known, f"it takes {', '.join(known)}"))


def positive(value: Any, key: str, where: str) -> float:
    """Return a number over 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{where}: {key} = {value!r} leaves nothing", hint=f"`{key}` is a number over 0")
    return float(value)
