"""How a candidate is made: one object that both compiles the model and prints itself as source."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.compilers.engines import ENGINES, Engine, engine_of, inference_only
from torchparity.errors import UsageError
from torchparity.records import Kind
from torchparity.request import COMPILER_OPTIONS, MODES, Request, suggestion
from torchparity.run.plan import Plan
from torchparity.torchapi import deployed

# What a compiler draws by default is inductor's own, and torch's in the place of NumPy's.
# The kinds of settings, and what a person may give for each.
SETTINGS: tuple[tuple[type, tuple[type, ...]], ...] = (
    (int, (int,)),
    (float, (int, float)),
    (str, (str,)),
    (list, (list, tuple)),
    (tuple, (list, tuple)),
    (dict, (dict,)),
    (set, (set, list, tuple)),
)
# Where what torch.compile is given may come from without being the user's.
NOT_USERS = ("torch", "torchparity", "functools", "builtins", "")
NUMPY_RANDOM = {"dynamo.use_numpy_random_stream": True}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A backend and everything it is told."""

    backend: str | Callable[..., Any] = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    fresh_cache: bool = False

    @property
    def engine(self) -> Engine | None:
        """The engine that the whole model is deployed in, or None where torch.compile compiles it."""
        return engine_of(self.backend)

    @property
    def ignored(self) -> frozenset[Kind]:
        """Facts about outputs that say nothing about the model."""
        ignored: frozenset[Kind] = getattr(self.engine or self.backend, "ignored", frozenset())
        return ignored

    def validated(self) -> Recipe:
        """Return the recipe, or raise where torch would not understand it.

        Settings of an engine may be given among those of the compilers: `openvino.NUM_STREAMS` is the option
        `NUM_STREAMS`.
        """
        if self.engine is not None:
            return deployable(self, self.engine.validated())
        if isinstance(self.backend, str):
            known = torchapi.list_backends()
            if self.backend not in known:
                otherwise = "`torchparity backends` lists them; one of your own is registered by the file of the model"
                raise UsageError(
                    f"there is no torch.compile backend named {self.backend!r}",
                    hint=suggestion(self.backend, [*known, *ENGINES], otherwise),
                )
        elif not callable(self.backend):
            raise UsageError(
                f"a backend is a name or a callable, not a {type(self.backend).__name__}",
                hint="pass a name such as 'inductor' or a function of (graph_module, inputs)",
            )
        if self.mode is not None and self.mode not in MODES:
            raise UsageError(
                f"there is no torch.compile mode {self.mode!r}",
                hint=suggestion(self.mode, MODES, f"the modes are {', '.join(MODES)}"),
            )
        for key, value in self.config.items():
            validate_setting(key, value)
        if self.backend == "inductor":
            for key, value in self.options.items():
                validate_setting(f"inductor.{key.replace('-', '_')}", value, said=f"--option {key}")
        return self

    def fitting(self, plan: Plan) -> Recipe:
        """Return the recipe, or raise where it cannot do what a plan asks for."""
        if self.engine is not None and (plan.training or plan.backward or plan.optimizer is not None):
            raise inference_only(self.engine.name)
        return self

    def with_eager_random(self, *, graph: bool = False) -> Recipe:
        """Return a recipe that draws eager's random numbers (unless the user said otherwise).

        The setting is inductor's, but every backend that uses its decompositions obeys it. A `graph` draws none of
        NumPy's.
        """
        if self.engine is not None and not self.engine.obeys_inductor:
            return self
        numpy = {} if graph else NUMPY_RANDOM
        return replace(self, config={**torchapi.eager_random_settings(), **numpy, **self.config})

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Hold the configuration while the candidate compiles and runs (it may compile again at any call)."""
        with contextlib.ExitStack() as stack:
            if self.fresh_cache:
                stack.enter_context(torchapi.fresh_compiler_cache())
            stack.enter_context(torchapi.patched_config(self.config))
            yield

    def build(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled model (compilation happens at its first call, inside `active`)."""
        torch.compiler.reset()
        if self.engine is not None:
            return self.engine.build(model, self.options, dynamic=bool(self.dynamic))
        compiled: Callable[..., Any] = torch.compile(
            model,
            backend=self.backend,
            mode=self.mode,
            dynamic=self.dynamic,
            fullgraph=self.fullgraph,
            options=dict(self.options) or None,
        )
        return compiled

    # --- as source -------------------------------------------------------------------------------------

    def to_source(self, model: str = "model") -> str:
        """Return Python source that does what `active` and `build` do."""
        return self.definitions() + self.steps_source(model)

    def definitions(self) -> str:
        """Return the source of what `steps_source` names and torch does not have: nothing, but for an engine."""
        if self.engine is None:
            return ""
        return "\n".join(deployed.IMPORTS) + "\n\n\n" + self.engine.definitions + "\n\n"

    def steps_source(self, model: str = "model") -> str:
        """Return the imports, the settings and the call."""
        imports, backend = self.backend_source()
        lines = ["import torch", *imports]
        if self.engine is not None:
            lines += [f"import {name}" for name in self.engine.modules]  # So that a missing one shows here.
        if self.fresh_cache:
            lines += ["import os, tempfile", 'os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()']
        lines += self.settings_source()
        call = self.call_source(model, f"backend={backend}")
        if self.engine is not None:
            call = self.engine.call_source(model, self.options, dynamic=bool(self.dynamic))
        lines.append(f"compiled = {call}")
        return "\n".join(lines) + "\n"

    def settings_source(self) -> list[str]:
        """Return the configuration as assignments."""
        lines = []
        for key, value in self.config.items():
            area, name = key.split(".", 1)
            module = torchapi.CONFIG_MODULES[area]
            lines += [f"import {module}", f"{module}.{name} = {value!r}"]
        return lines

    def call_source(self, *arguments_before: str) -> str:
        """Return the call of `torch.compile`, after the arguments that come first."""
        told: dict[str, Any] = {"mode": self.mode, "dynamic": self.dynamic, "fullgraph": self.fullgraph or None}
        told["options"] = dict(self.options) or None
        arguments = [f"{name}={value!r}" for name, value in told.items() if value is not None]
        return f"torch.compile({', '.join([*arguments_before, *arguments])})"

    def backend_source(self) -> tuple[list[str], str]:
        """Return the imports and the expression that name the backend in source."""
        if self.engine is not None:
            return [], repr(self.backend)
        if isinstance(self.backend, str):
            return registered_source(self.backend)
        if hasattr(self.backend, "to_source"):
            imports, expression = self.backend.to_source()
            return list(imports), str(expression)
        module, name = getattr(self.backend, "__module__", ""), getattr(self.backend, "__qualname__", "")
        if not module or not name.isidentifier():
            return [], repr(self.backend_name())
        return [f"import {module}"], f"{module}.{name}"

    def backend_name(self) -> str:
        """Return a printable name of the backend."""
        if isinstance(self.backend, str):
            return self.backend
        return getattr(self.backend, "__name__", type(self.backend).__name__)

    def facts(self) -> dict[str, Any]:
        """Return the recipe as plain data."""
        return {
            "backend": self.backend_name(),
            "mode": self.mode,
            "dynamic": self.dynamic,
            "fullgraph": self.fullgraph,
            "options": {key: repr(value) for key, value in self.options.items()},
            "config": {key: repr(value) for key, value in self.config.items()},
            "fresh_cache": self.fresh_cache,
            "source": self.to_source(),
        }


def recipe_of(request: Request, *, dynamic: bool | None = None) -> Recipe:
    """Return the recipe of a request, or refuse what torch would not understand; `dynamic` is the subject's word."""
    told = {name: getattr(request, name) for name in COMPILER_OPTIONS}
    told["dynamic"] = dynamic if request.dynamic is None else request.dynamic
    return Recipe(**told).validated()


def deployable(recipe: Recipe, engine: Engine) -> Recipe:
    """Return a recipe for an engine with all its options in one place, or raise where something can mean nothing."""
    own = {key: value for key, value in recipe.config.items() if key.startswith(f"{engine.name}.")}
    config = {key: value for key, value in recipe.config.items() if key not in own}
    options = {**recipe.options, **{key.removeprefix(f"{engine.name}."): value for key, value in own.items()}}
    if recipe.mode is not None:
        raise UsageError(
            f"{engine.name} has no mode {recipe.mode!r}: modes are torch.compile's", hint="leave out --mode (mode=)"
        )
    if recipe.fullgraph:
        raise UsageError(
            f"fullgraph means nothing to {engine.name}, which gets the model as one graph",
            hint="leave out --fullgraph (fullgraph=)",
        )
    for key in config:
        validate_config_key(key)
        if not engine.obeys_inductor:
            raise UsageError(
                f"{engine.name} does not obey the compiler setting {key}",
                hint=f"its own settings are written {engine.name}.NAME=VALUE",
            )
    return replace(recipe, config=config, options=options)


def validate_config_key(key: str) -> None:
    """Raise unless a key such as `inductor.fallback_random` names a setting that exists."""
    area, dot, name = key.partition(".")
    if area not in torchapi.CONFIG_MODULES or not dot:
        raise UsageError(
            f"{key!r} is not a compiler setting",
            hint=f"write AREA.NAME with AREA one of {', '.join(torchapi.CONFIG_MODULES)}",
        )
    module = torchapi.config_module(area)
    if not hasattr(module, name):
        names = list(module.get_config_copy())
        raise UsageError(
            f"{area} has no setting {name!r}",
            hint=suggestion(name, names, f"see torch's own {torchapi.CONFIG_MODULES[area]}"),
        )


def is_such(value: Any, held: Any) -> bool:
    """Tell whether a value may stand in the place of a setting's; of settings of other kinds nobody knows."""
    if type(held) is bool:
        return value in (False, True)
    if isinstance(value, bool):
        return type(held) not in (int, float, str, list, tuple, dict, set)
    return next((isinstance(value, kinds) for kind, kinds in SETTINGS if type(held) is kind), True)


def validate_setting(key: str, value: Any, *, said: str = "") -> None:
    """Raise unless a setting exists, and a value is of the kind that it has."""
    validate_config_key(key)
    area, _, name = key.partition(".")
    held = getattr(torchapi.config_module(area), name)
    if value is None or is_such(value, held):
        return
    raise UsageError(
        f"{said or key} is {held!r} by default, and {value!r} is a {type(value).__name__}",
        hint=f"give {'True or False' if type(held) is bool else f'a value such as {held!r}'}",
    )


# --- backends of the user's ------------------------------------------------------------------------


def registering_import(backend: str) -> list[str]:
    """Return the import that makes torch.compile know a backend, where torch does not find it by itself."""
    return registered_source(backend)[0]


def registered_source(backend: str) -> tuple[list[str], str]:
    """Return the import and the expression for a registered name: the name itself, or what was registered under it.

    Where a function is registered under its own name, its module does that. Else who knows which module did: the object
    is named instead, where it stands in a module; where it stands in none, the module of what it was made of.
    """
    if backend not in torchapi.list_backends():
        return [], repr(backend)
    function = torchapi.backend_function(backend)
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__name__", "")
    if not inspect.isfunction(function):  # An object: its class may stand anywhere, so look for who holds it.
        held = [(owner, key) for owner in list(sys.modules) for key in names_of(sys.modules[owner], function)]
        made = (next(iter(makers(function)), ""), "")
        module, name = min(held, key=lambda place: place[0].split(".")[0] != "torch", default=made)
    if module.split(".")[0] in NOT_USERS:
        return [], repr(backend)
    registers = not name or name == backend or getattr(sys.modules.get(module), name, None) is not function
    return [f"import {module}"], repr(backend) if registers else f"{module}.{name}"


def is_lost(backend: str) -> bool:
    """Tell whether a backend is something that no module holds or makes: no other process can find it."""
    function = torchapi.backend_function(backend) if backend in torchapi.list_backends() else None
    if function is None or registering_import(backend):
        return False
    module = getattr(function, "__module__", "") or ""
    return module.split(".")[0] not in ("torch", "torchparity")


def makers(value: Any, depth: int = 5) -> Iterator[str]:
    """Yield the modules of the user's own functions that an object was made of: `aot_autograd(fw_compiler=mine)`."""
    module = str(getattr(value, "__module__", ""))
    if inspect.isfunction(value) and module.split(".")[0] not in NOT_USERS:
        yield module
    inside: list[Any] = (
        list(value.values()) if isinstance(value, dict) else list(getattr(value, "__dict__", {}).values())
    )
    if isinstance(value, functools.partial):
        inside += [value.func, *value.args, *value.keywords.values()]
    for entry in inside if depth and not isinstance(value, torch.nn.Module | types.ModuleType) else ():
        yield from makers(entry, depth - 1)


def names_of(module: Any, value: Any) -> list[str]:
    """Return the names by which a module has a value."""
    return [name for name, entry in list(getattr(module, "__dict__", {}).items()) if entry is value]


def recipe_plain(request: Request) -> Recipe:
    """Return the recipe of a request as it stands: whether torch understands it is not asked."""
    return Recipe(**{name: getattr(request, name) for name in COMPILER_OPTIONS})
