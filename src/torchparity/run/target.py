"""Load what the user points at: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchparity.errors import TargetError
from torchparity.run.loss import describe
from torchparity.run.naming import FORMS
from torchparity.run.naming import require as require
from torchparity.run.subject import Subject
from torchparity.run.variants import in_dtype, on_device, with_batch


@dataclass(frozen=True)
class Target:
    """A subject by name: it is loaded where it is wanted, in a worker for instance."""

    name: str
    device: str | None = None
    dtype: str | None = None
    batch: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Subject:
        """Return the subject, calling what is named where it is a factory."""
        found, name = find_target(self.name)
        if self.parameters:
            if not callable(found):
                raise TargetError(f"{name} takes no parameters", hint="parameters are for a factory")
            found = functools.partial(found, **self.parameters)
        subject = make_subject(found, name, device=self.device)
        subject = subject if self.dtype is None else in_dtype(subject, self.dtype)
        return subject if self.batch is None else with_batch(subject, self.batch)

    def title(self) -> str:
        """Return a name to show."""
        return self.name


def find_target(target: str) -> tuple[Any, str]:
    """Return what a target names, not called yet, and its name."""
    require(target)
    place, _, name = target.rpartition(":")
    module = _load_file(place) if place.endswith(".py") else _load_module(place)
    return _find(module, place, name), name


def make_subject(found: Any, name: str, *, device: str | None = None) -> Subject:
    """Return the subject that something found is, or makes, on a device."""
    subject = as_subject(found, name)
    if device is not None:
        subject = on_device(subject, device)
    for args, kwargs in subject.calls():
        _check_arguments(subject.model, args, kwargs, name)
    return subject


def _load_file(place: str) -> ModuleType:
    path = Path(place)
    name = f"torchparity_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{place} cannot be imported as Python", hint=FORMS)
    loader = spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    _execute(lambda: loader.exec_module(module), place)
    return module


def _load_module(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    loaded: list[ModuleType] = []
    _execute(lambda: loaded.append(_imported(place)), place)
    return loaded[0]


def _imported(place: str) -> ModuleType:
    """Import a module; one that is not there, but not one that a module wants which is there, is told as such."""
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise TargetError(
            f"there is no module {place!r}", hint=f"{FORMS}; is it installed, or in this folder?"
        ) from error
    except (TypeError, ValueError) as error:
        if place.strip(".") and not place.startswith("."):
            raise
        raise TargetError(f"{place!r} is not the name of a module", hint=FORMS) from error


def _execute(action: Any, what: str) -> None:
    try:
        action()
    except TargetError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = f"{_place(error)}run it alone in Python to see the whole traceback"
        package = _package_of(Path(what)) if isinstance(error, ImportError) and what.endswith(".py") else ""
        if package:
            hint = f"the file lies in a package: name it as {package}:NAME, in the folder that holds the package"
        raise TargetError(f"{what} raises {type(error).__name__}: {_first_line(error)}", hint=hint) from error


def _package_of(path: Path) -> str:
    """Return the dotted name of a file inside a package; nothing for one that lies in none."""
    parts = [path.stem]
    folder = path.resolve().parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) if len(parts) > 1 else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else ""


def _place(error: BaseException) -> str:
    """Say where in the user's own code it happened: the last frame that is not torch's."""
    if isinstance(error, SyntaxError):
        return f"at {error.filename}:{error.lineno}; "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours_or_torch(frame.filename)]
    return f"at {frames[-1].filename}:{frames[-1].lineno}; " if frames else ""


def _is_ours_or_torch(filename: str) -> bool:
    parts = Path(filename).parts
    return filename.startswith("<") or "torch" in parts or "torchparity" in parts


def _find(module: ModuleType, place: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [word for word in dir(found) if not word.startswith("_")]
            near = difflib.get_close_matches(part, names, n=1)
            known = ", ".join(names[:8]) or "nothing"
            raise TargetError(
                f"{place} has no {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"it defines {known}",
            )
        found = getattr(found, part)
    return found


def as_subject(found: Any, name: str) -> Subject:
    """Read a module, a function, a factory or a subject."""
    if isinstance(found, Subject):
        return found
    if isinstance(found, torch.nn.Module):
        return Subject(found, name=name)
    if isinstance(found, tuple | list):
        return _from_tuple(tuple(found), name)
    if not callable(found):
        raise TargetError(
            f"{name} is a {type(found).__name__}, not a model",
            hint="give a module, a function, or a factory that returns (model, args)",
        )
    if _needs_arguments(found):
        raise TargetError(
            f"{name} takes arguments, and there are none to give it",
            hint=f"write a factory without parameters that returns ({name}, args)",
        )
    made: list[Any] = []
    _execute(lambda: made.append(found()), f"{name}()")
    result = made[0]
    if isinstance(result, Subject):
        return result
    if isinstance(result, torch.nn.Module):
        return Subject(result, name=name)
    if isinstance(result, tuple | list) and result and _is_model(result[0]):
        return _from_tuple(tuple(result), name)
    if inspect.isfunction(result) or isinstance(result, type(print)):
        return Subject(result, name=name)
    if isinstance(found, type) or not isinstance(result, torch.Tensor):
        raise TargetError(
            f"{name}() gives {describe(result)}, not a model",
            hint="return a module, a function, or (model, args); a model without inputs is (function, ())",
        )
    return Subject(found, name=name)  # A plain function without arguments that returns a tensor is a model itself.


def _is_model(value: Any) -> bool:
    return callable(value) and not isinstance(value, type | torch.Tensor)


def _from_tuple(parts: tuple[Any, ...], name: str) -> Subject:
    if not parts or not _is_model(parts[0]) or len(parts) > 3:
        raise TargetError(
            f"{name} gives a tuple that is not (model, args) or (model, args, kwargs)",
            hint="return the model first, then a tuple of arguments, then a dict of keyword arguments",
        )
    model = parts[0]
    args: Any = parts[1] if len(parts) > 1 else ()
    kwargs: Any = parts[2] if len(parts) > 2 else {}
    if isinstance(args, Mapping) and len(parts) == 2:
        args, kwargs = (), args
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise TargetError(
            f"the inputs of {name} are a {type(args).__name__} and a {type(kwargs).__name__}",
            hint="return (model, args, kwargs) with a tuple of arguments and a dict",
        )
    return Subject(model, tuple(args), dict(kwargs), name=name)


def _needs_arguments(function: Any) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
    )


def _check_arguments(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> None:
    """Raise where a model cannot even be called with its inputs."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TargetError(
            f"{name} cannot be called with {len(args)} arguments and {len(kwargs)} keywords: {error}",
            hint=f"its signature is {signature}",
        ) from error
