"""The request: how a subject is compiled, run and judged. Every verb, command, worker and bundle carries it whole.

Keywords become a request in `request_for`, and nowhere else. What an option cannot mean for a verb stands in one table.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from torchparity.errors import UsageError

if TYPE_CHECKING:
    import torch

    from torchparity.records import Kind

COMPILER_OPTIONS = ("backend", "mode", "dynamic", "fullgraph", "options", "config", "fresh_cache")
RUN_OPTIONS = (
    "train", "backward", "no_grad", "inference_mode", "steps", "optimizer", "autocast", "loss", "input_gradients",
    "seed",
)  # fmt: skip
JUDGE_OPTIONS = (
    "tolerance", "ignore", "reference", "noise_runs", "candidate_runs", "allow_eager", "exact", "every_choice",
)  # fmt: skip
OF_COMPILERS = ("candidate_runs", "allow_eager", "every_choice")
EVERY = (*COMPILER_OPTIONS, *RUN_OPTIONS, *JUDGE_OPTIONS)
PROJECTION, MEAN = "projection", "mean"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Facts about a result that a person may not mind. Values are never among them.
IGNORABLE = ("stride", "alias", "requires_grad", "dtype", "layout", "structure")
SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}


class OtherOptions(TypedDict, total=False):
    """The keywords of every verb that takes a model, but for the backend."""

    mode: str | None
    dynamic: bool | None
    fullgraph: bool
    options: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    fresh_cache: bool
    train: bool
    backward: bool | None
    no_grad: bool
    inference_mode: bool
    steps: int | None
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer] | str | None
    autocast: torch.dtype | str | None
    loss: Callable[[Any], torch.Tensor] | str | None
    input_gradients: bool | None
    seed: int
    tolerance: float | None
    ignore: Iterable[str | Kind]
    reference: bool
    noise_runs: int
    candidate_runs: int
    allow_eager: bool
    exact: bool
    every_choice: bool


class Options(OtherOptions, total=False):
    """The keywords of every verb that takes a model."""

    backend: str | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked for: of the compiler, of a run, of the judgement. What is None is left to the rest."""

    backend: str | Callable[..., Any] = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    fresh_cache: bool = False
    train: bool = False
    backward: bool | None = None
    no_grad: bool = False
    inference_mode: bool = False
    steps: int | None = None
    optimizer: Any = None
    autocast: str | None = None
    loss: Any = None
    input_gradients: bool | None = None
    seed: int = 0
    tolerance: float | None = None
    ignore: tuple[str, ...] = ()
    reference: bool = True
    noise_runs: int = 6
    candidate_runs: int = 2
    allow_eager: bool = False
    exact: bool = False
    every_choice: bool = False

    def given(self) -> dict[str, Any]:
        """Return what was asked for: every field that is not as it would be without a word."""
        return {name: getattr(self, name) for name in EVERY if getattr(self, name) != getattr(PLAIN, name)}

    @property
    def gradients(self) -> bool:
        """Whether a backward pass is run (where that was left open, `settled` has asked the inputs)."""
        return self.train if self.backward is None else self.backward

    @property
    def differentiates(self) -> bool:
        """Whether the model runs as most callers run it: with gradients enabled."""
        return not (self.no_grad or self.inference_mode)


PLAIN = Request()


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Options that mean nothing to a verb: why, and what to do instead."""

    options: Collection[str]
    why: str
    hint: str


# What each verb cannot take; a verb that is not here takes everything.
REFUSALS: Mapping[str, tuple[Refusal, ...]] = {
    "explain": (
        Refusal(options=JUDGE_OPTIONS, why="explain judges nothing", hint="leave it out, or ask `torchparity check`"),
    ),
    "passes": (
        Refusal(options=("backend",), why="the passes are inductor's", hint="leave out --backend (backend=)"),
        Refusal(options=OF_COMPILERS, why="a pass is no compiler that may be flaky", hint="leave it out"),
    ),
    "passes of one's own": (
        Refusal(options=COMPILER_OPTIONS, why="passes of one's own compile nothing", hint="leave it out"),
        Refusal(options=OF_COMPILERS, why="a pass is no compiler that may be flaky", hint="leave it out"),
    ),
    "guard": (
        Refusal(
            options=("mode", "dynamic", "fullgraph", "options", "fresh_cache"),
            why="a guard hears that from torch.compile",
            hint="say it to torch.compile(model, backend=torchparity.guard(...), ...)",
        ),
        Refusal(options=("allow_eager",), why="a guard sees compiled graphs only", hint="leave it out"),
        Refusal(options=("every_choice",), why="a guard judges what the program runs", hint="ask `torchparity check`"),
        Refusal(options=RUN_OPTIONS, why="a guard sees graphs as the program runs them", hint="leave it out"),
    ),
    "a bundle": (
        Refusal(
            options=EVERY,
            why="a bundle says itself how it is compiled, run and judged",
            hint="name the model instead, or capture it again with this option",
        ),
    ),
}  # fmt: skip


def request_for(verb: str, options: Mapping[str, Any], *, base: Request = PLAIN) -> Request:
    """Return the request that keywords make for a verb, or refuse what cannot mean anything."""
    for name in options:
        if name not in EVERY:
            known = f"the options are {', '.join(EVERY)}"
            raise UsageError(f"{verb} has no option {name!r}", hint=suggestion(name, EVERY, known))
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("options", "config"):
        given |= {name: dict(given[name])} if name in given else {}
    if "ignore" in given:
        given["ignore"] = tuple(str(getattr(kind, "value", kind)) for kind in given["ignore"])
    if "autocast" in given:
        name = str(given["autocast"]).removeprefix("torch.")
        given["autocast"] = SHORT_DTYPES.get(name, name)
    request = replace(base, **given)
    refuse(verb, request)
    check_values(request)
    return request


def refuse(verb: str, request: Request) -> None:
    """Raise where a request holds what a verb cannot take."""
    asked = request.given()
    for refusal in REFUSALS.get(verb, ()):
        strange = [name for name in asked if name in refusal.options]
        if strange:
            raise UsageError(f"{verb} does not take {', '.join(strange)}: {refusal.why}", hint=refusal.hint)


def check_values(request: Request) -> None:
    """Raise where a value means nothing, whatever the model is."""
    if request.steps is not None and request.steps < 1:
        raise UsageError(
            f"{request.steps} optimizer steps leave nothing to compare", hint="use --steps 1 or more, or leave it out"
        )
    if not -(2**63) <= request.seed < 2**63:
        raise UsageError(f"{request.seed} is no seed", hint="give an integer of at most 64 bits")
    if not request.differentiates and (request.gradients or request.optimizer is not None or request.steps):
        word = "inference_mode" if request.inference_mode else "no_grad"
        raise UsageError(
            f"a backward pass needs gradients, which {word} turns off",
            hint="leave out --no-grad and --inference-mode, or the backward pass",
        )
    if isinstance(request.loss, str) and request.loss not in (PROJECTION, MEAN):
        raise UsageError(
            f"there is no loss named {request.loss!r}",
            hint=f"use {PROJECTION!r}, {MEAN!r} or a function of the outputs",
        )
    if request.noise_runs < 2 or request.candidate_runs < 1:
        raise UsageError(
            f"{request.noise_runs} noise runs and {request.candidate_runs} candidate runs are too few to judge by",
            hint="use at least 2 noise runs and 1 candidate run",
        )
    if request.exact and not request.reference:
        raise UsageError("exact data need the float64 reference", hint="leave out --no-reference, or --exact")
    if request.every_choice and request.backend != "inductor":
        raise UsageError("only inductor chooses among kernels", hint="leave out --every-choice, or --backend")
    if request.tolerance is not None and not request.tolerance > 0:
        raise UsageError(
            f"a tolerance of {request.tolerance} allows nothing",
            hint="give a positive number, or leave it out to be judged by the model's own noise",
        )
    for kind in request.ignore:
        if kind not in IGNORABLE:
            raise UsageError(f"a difference in {kind!r} cannot be ignored", hint=f"these can: {', '.join(IGNORABLE)}")


def suggestion(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return `did you mean ...` for the nearest known word, else something general."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? {otherwise}" if near else otherwise
