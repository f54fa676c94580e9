"""Options that commands share, each said once; and the group of those that make a request, for every model."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchparity.errors import UsageError
from torchparity.request import Request, request_for, suggestion

if TYPE_CHECKING:
    from torchparity.records import Severity

MODEL, COMPILER, JUDGEMENT, OUTPUT = "What to run", "The compiler", "The judgement", "Output"
GIB = 2**30

Named = Annotated[str, typer.Argument(help="file.py:name or package.module:name; a model, a function or a factory.")]
What = Annotated[str, typer.Argument(help="A bundle that fails, or a model: file.py:name.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds one query may take.")]
Memory = Annotated[float | None, typer.Option("--memory", help="GiB of memory one query may take.")]
Budget = Annotated[str | None, typer.Option("--budget", help="Time to spend: 90s, 5m, 1h.")]
Workers = Annotated[int | None, typer.Option("--workers", help="Queries at once.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run a bundle that was made elsewhere, or by somebody else.")]
FailOn = Annotated[
    str | None,
    typer.Option("--fail-on", help="Exit with 1 from this severity on: layout, precision, wrong, nonfinite, ..."),
]
RequireCompiled = Annotated[
    str | None,
    typer.Option("--require-compiled", help="Exit with 125 where less than this share was compiled: 90%, or 0.9."),
]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write a JUnit file, for CI.", rich_help_panel=OUTPUT)]
Sanitize = Annotated[bool, typer.Option("--sanitize", help="One more run under NVIDIA's compute-sanitizer.")]
Leaves = Annotated[int, typer.Option("--leaves", help="Rows of the table.", rich_help_panel=OUTPUT)]
Json = Annotated[Path | None, typer.Option("--json", help="Write everything to this file.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=OUTPUT)]


@dataclass(frozen=True)
class Asking:
    """One option of the command line that asks for something of a request."""

    name: str
    kind: Any
    flag: str
    help: str
    panel: str


# What the command line can ask for. A name that a request does not have is turned into one by `asked`.
REQUEST = (
    Asking("train", bool | None, "--train", "Train mode, forward and backward.", MODEL),
    Asking("backward", bool | None, "--backward", "Backward too, in eval mode.", MODEL),
    Asking("no_grad", bool | None, "--no-grad", "Run under torch.no_grad().", MODEL),
    Asking("inference_mode", bool | None, "--inference-mode", "Run under torch.inference_mode().", MODEL),
    Asking("steps", int | None, "--steps", "Optimizer steps to compare.", MODEL),
    Asking("optimizer", str | None, "--optimizer", "A torch.optim class, such as adamw.", MODEL),
    Asking("autocast", str | None, "--autocast", "Run under autocast: bfloat16 or float16.", MODEL),
    Asking("loss", str | None, "--loss", "projection (seeded, the default) or mean.", MODEL),
    Asking("input_gradients", bool | None, "--input-gradients", "Ask for gradients of all float inputs.", MODEL),
    Asking("device", str | None, "--device", "Move model and inputs there first.", MODEL),
    Asking("seed", int | None, "--seed", "Seed of everything random.", MODEL),
    Asking("backend", str | None, "--backend", "Any of `torchparity backends`; inductor by default.", COMPILER),
    Asking("mode", str | None, "--mode", "A torch.compile mode.", COMPILER),
    Asking("dynamic", bool | None, "--dynamic/--static", "Dynamic shapes on or off.", COMPILER),
    Asking("fullgraph", bool | None, "--fullgraph", "Refuse graph breaks.", COMPILER),
    Asking("option", list[str] | None, "--option", "KEY=VALUE for torch.compile's `options`.", COMPILER),
    Asking("config", list[str] | None, "--config", "AREA.KEY=VALUE, such as inductor.max_fusion_size=1.", COMPILER),
    Asking("fresh_cache", bool | None, "--fresh-cache", "Compile with an empty cache.", COMPILER),
    Asking("tolerance", float | None, "--tolerance", "Allow this share of a leaf's scale, not its noise.", JUDGEMENT),
    Asking("ignore", list[str] | None, "--ignore", "A kind of difference not to mind: stride, ...", JUDGEMENT),
    Asking("no_reference", bool | None, "--no-reference", "Do without the float64 reference.", JUDGEMENT),
    Asking("noise_runs", int | None, "--noise-runs", "Runs with noise, at most: fewer where it is clear.", JUDGEMENT),
    Asking("exact", bool | None, "--exact", "Run on exact data too, and allow no difference there.", JUDGEMENT),
    Asking("every_choice", bool | None, "--every-choice", "Judge every kernel that tuning may take.", JUDGEMENT),
    Asking("allow_eager", bool | None, "--allow-eager", "Judge also where nothing was compiled.", JUDGEMENT),
    Asking("runs", int | None, "--runs", "Runs of the compiled model.", JUDGEMENT),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line asks for of a model: the keywords of a request as far as they were given, and the device."""

    options: dict[str, Any]
    device: str | None = None

    def request(self, verb: str) -> Request:
        """Return the request, or refuse what it cannot mean for a verb."""
        return request_for(verb, self.options)


def takes_request(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the whole group of options; it gets them as `asked`."""

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        told = {asking.name: given.pop(asking.name) for asking in REQUEST}
        return command(**given, asked=asked_of(told))

    own = inspect.signature(command, eval_str=True).parameters
    shared = {
        asking.name: inspect.Parameter(
            asking.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                asking.kind,
                typer.Option(asking.flag, help=asking.help, rich_help_panel=asking.panel, show_default=False),
            ],
        )
        for asking in REQUEST
    }
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, parameter in own.items() if name != "asked"
    ]
    run.__signature__ = inspect.Signature([*kept, *shared.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *shared.values()]}
    return run


def asked_of(told: dict[str, Any]) -> Asked:
    """Turn the words of a command line into the keywords of a request; only those that were given."""
    given = {name: value for name, value in told.items() if value is not None and value != []}
    device = given.pop("device", None)
    if given.pop("no_reference", None):
        given["reference"] = False
    if "runs" in given:
        given["candidate_runs"] = given.pop("runs")
    if "option" in given:
        given["options"] = dict(map(read_setting, given.pop("option")))
    if "config" in given:
        given["config"] = dict(map(read_setting, given["config"]))
    return Asked(options=given, device=device)


def share_of(text: str | None) -> float:
    """Return a share such as `90%` or `0.9` as a number; nothing is asked where none is named."""
    if text is None:
        return 0.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} is not a share", hint="write --require-compiled 90% or 0.9")
    return share


def severity_named(word: str | None) -> Severity:
    """Return the severity of a name; everything that differs where none is named."""
    from torchparity.records import Severity

    if word is None:
        return Severity.NONE
    known = [severity.value for severity in Severity if severity is not Severity.NONE]
    if word not in known:
        raise UsageError(f"there is no severity {word!r}", hint=suggestion(word, known, f"they are {', '.join(known)}"))
    return Severity(word)


def read_setting(entry: str) -> tuple[str, Any]:
    """Read KEY=VALUE; the value is a Python literal, or else a string."""
    key, separator, text = entry.partition("=")
    if not separator or not key:
        raise UsageError(f"{entry!r} is not a setting", hint="write --config inductor.key=value")
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = {"true": True, "false": False, "none": None}
        return key, words.get(text.lower(), text)
