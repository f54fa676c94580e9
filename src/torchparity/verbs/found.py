"""What a diagnosis keeps of what its stages have found: the facts of its record."""

from __future__ import annotations

from typing import Any

from torchparity.minifier.log import curve_of
from torchparity.minifier.minified import Minified
from torchparity.records import Blame, Located, Smallest, Verdict
from torchparity.repro.source import SCRIPT

# The folder of the smallest script, in that of a diagnosis.
SMALL = "small"


def as_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return what a diagnosis keeps of a verdict."""
    return {"verdict": verdict, "environment": verdict.environment}


def as_located(located: Located) -> dict[str, Located]:
    """Return what a diagnosis keeps of where the graph goes wrong."""
    return {"located": located}


def as_blame(blame: Blame) -> dict[str, Blame]:
    """Return what a diagnosis keeps of who is to blame."""
    return {"blame": blame}


def as_smaller(small: Minified) -> dict[str, Smallest]:
    """Return what a diagnosis keeps of the smallest script."""
    path = SCRIPT if small.script_is_plain else f"case/{SCRIPT}"
    record = Smallest(
        operations=small.compute_nodes,
        inputs=len(small.case.inputs),
        started_from=small.started_from,
        script=small.script,
        script_path=f"{SMALL}/{path}",
        output=small.script_output,
        title=small.title,
        plain=small.script_is_plain,
        reproduced=small.reproduced,
        queries=small.queries,
        unanswered=small.unanswered,
        seconds=small.seconds,
        complete=small.complete,
        failure=small.signature.summary,
        others=tuple(small.others),
        curve=curve_of(small.log),
    )
    return {"smallest": record}
