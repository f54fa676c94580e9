"""What a command is about: a bundle, or a model by name; and what may be spent on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from torchparity.errors import UsageError
from torchparity.run.naming import require
from torchparity.workers.outcome import Limits

if TYPE_CHECKING:
    from torchparity.repro.case import Case
    from torchparity.request import Request
    from torchparity.run.target import Target

GIB = 2**30
RUN = "run.json"
# Seconds or GiB that no limit can mean.
LARGEST = 1e9
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def case_or_target(what: str, device: str | None, *, trust: bool = False) -> Case | Target:
    """Return the case of a bundle, or the target that names a model; nothing of either is run here."""
    if (Path(what) / RUN).is_file():
        raise UsageError(f"{what} is a run", hint=f"`torchparity report {what}` shows it; its graph is {what}/graph")
    if Path(what).is_dir():
        if device is not None:
            raise UsageError("a bundle does not take device: it says itself where it runs", hint="leave out --device")
        return trusted_case(Path(what), trust=trust)
    if ":" not in what:
        hint = "name a folder that `capture` wrote, or file.py:name"
        raise UsageError(f"{what} is neither a bundle nor a model", hint=hint)
    return named(what, device)


def named(target: str, device: str | None) -> Target:
    """Return the target of a name; one that cannot be is refused before torch is imported."""
    require(target)
    from torchparity.run.target import Target

    return Target(target, device)


def trusted_case(folder: Path, *, trust: bool) -> Case:
    """Return the case of a bundle that may be run: this user made it here, or says that it is trusted.

    That it cannot be read, or may not be run, is found out before torch is imported.
    """
    from torchparity.repro.looking import look_at

    look = look_at(folder)
    if not look.ours and not trust:
        operations, backend = look.facts["compute_nodes"], look.facts["request"]["backend"]["expression"]
        parts = [f"its graph of {operations} operations, as source", f"the backend {backend}"]
        parts += [f"the module {name} in it" for name in look.files]
        raise UsageError(
            f"{folder} was not made by you on this machine; it would run {', '.join(parts)}",
            hint=f"`torchparity show {folder}` shows all of it; add --trust to run it",
        )
    from torchparity.repro.bundle import case_of

    return case_of(look)


def limits_of(timeout: float, memory: float | None) -> Limits:
    """Turn the options into limits."""
    for option, value in (("--timeout", timeout), ("--memory", memory)):
        if value is not None and not 0 < value < LARGEST:
            raise UsageError(f"{option} {value:g} is no limit", hint="give a positive number")
    return Limits(seconds=timeout, memory=int(memory * GIB) if memory is not None else None)


def seconds_of(text: str | None) -> float | None:
    """Return a time such as `90s`, `5m` or `1h` in seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{text!r} is not a time", hint="write it as 90s, 5m or 1h")
    return float(found[1]) * UNITS[found[2]]


def at_least_one(**numbers: int | None) -> None:
    """Refuse options that count nothing."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number} is too few", hint="give at least 1")


def writable(path: Path | None) -> Path | None:
    """Return the file that is meant, wherever the target goes; refuse one that could not be written."""
    if path is not None and path.is_dir():
        raise UsageError(f"{path} is a folder", hint="give --json the name of a file")
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to write {path.name} to", hint="make it first")
    return path.absolute() if path is not None and str(path) != "-" else path


def may_sanitize(sanitize: bool, *, ranks: bool = False) -> None:
    """Raise where a run under the sanitizer is asked for that cannot be."""
    if not sanitize:
        return
    if ranks:
        raise UsageError("--sanitize and torchrun do not go together", hint="sanitize one rank's model by itself")
    from torchparity.verbs.sanitize import require_sanitizer

    require_sanitizer()


def may_choose(request: Request, *, ranks: bool) -> None:
    """Raise where every choice is asked for on ranks, which would each try as many as they like."""
    if request.every_choice and ranks:
        raise UsageError("--every-choice and torchrun do not go together", hint="judge one rank's model by itself")
