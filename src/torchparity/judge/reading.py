"""How a search reads an answer. The rule for no answer, once and for all searches:

FAILS        as the failure that is looked for does
OTHERWISE    differs, but in another way: it tells nothing about the failure, and is never followed
PASSES       agrees
NO_ANSWER    neither failing nor passing. Nothing is adopted for it, nobody is accused or cleared by it, and whatever is
             found all the same says how many runs gave none

So a search acts on FAILS (adopt, go deeper) and on PASSES (accuse what was left out) only.
"""

from __future__ import annotations

import enum
from typing import NoReturn

from torchparity.records import Status


class Reading(enum.Enum):
    """What an answer says to a search."""

    FAILS = "fails"
    OTHERWISE = "fails otherwise"
    PASSES = "passes"
    NO_ANSWER = "no answer"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Reading has no truth value: compare it, as in `reading is Reading.FAILS`")


def read(status: Status, kind: str, wanted: str) -> Reading:
    """Read a status and its kind of difference where one kind is looked for."""
    if status is Status.UNKNOWN:
        return Reading.NO_ANSWER
    if status is Status.SAME:
        return Reading.PASSES
    return Reading.FAILS if kind == wanted else Reading.OTHERWISE
