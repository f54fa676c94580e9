"""Which real bugs of `benchmarks/bugs.py` a hunt has found by itself.

    torchparity hunt --minutes 180 --out finds
    python -m benchmarks.rediscovery finds

A bug of a hunt is recognised by its smallest program and the kind of its difference; what the grammar does not say is
told with the reason. Nothing steers a hunt to them.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bugs import BUGS
from torchparity.hunting.store import Bug, Store

SPECIAL = "needs NaN, Inf or extreme values, which are drawn only when they are asked for"
REFUSED = "eager refuses it; programs are valid by construction"
NUMBERS = ("value", "integer", "mutation", "bias")
# Bugs that the grammar cannot say.
UNSAID = {
    "arange-times": "numbers beyond 2**24 are left out of programs",
    "remainder-of-infinity": SPECIAL,
    "times-zero": SPECIAL,
    "nan-constant": SPECIAL,
    "scaled-quotient": SPECIAL,
    "strided-outside": "reads outside of a tensor are undefined in eager, and left out",
    "pool-of-nothing": "operators that draw random numbers are not among the openings",
    "target-above-one": REFUSED,
    "column-plus-scalar": REFUSED,
    "negative-beta": REFUSED,
    "full-of-flag": "no template fills with a tensor",
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How a bug is recognised: the kinds of its difference, what its smallest program says, and what it does not."""

    kinds: tuple[str, ...]
    says: tuple[str, ...]
    never: str = r"$^"

    def covers(self, bug: Bug) -> bool:
        """Tell whether a bug of a hunt is this one."""
        said = all(re.search(pattern, bug.text) for pattern in self.says)
        return bug.kind in self.kinds and said and not re.search(self.never, bug.text)


# An operation in place, or an assignment to a part; asking for gradients is none.
WRITES = r"\w(?<!requires_grad)_\(|\] [-+*/]?=(?!=)"
MARKS = {
    "any-of-bytes": Mark(kinds=("dtype", *NUMBERS), says=(r"\bany\(", "uint8")),
    "typed-cumsum": Mark(kinds=("dtype",), says=(r"\bcumsum\(.*dtype=",)),
    "least-byte": Mark(kinds=NUMBERS, says=(r"\b(amin|amax|min|max|aminmax)\(", "int8")),
    "greatest-negative": Mark(kinds=NUMBERS, says=(r"\b(argmin|argmax)\(", "int8")),
    "floor-division": Mark(kinds=NUMBERS, says=(r"//|floor_divide|rounding_mode='floor'",)),
    "strided-inside": Mark(kinds=NUMBERS, says=(r"\bas_strided\(",), never=WRITES),
    "padded-labels": Mark(kinds=NUMBERS, says=(r"\bmultilabel_margin_loss\(",)),
    "through-gaps": Mark(kinds=NUMBERS, says=(r"\bunfold\(", WRITES)),
    "through-dropout": Mark(kinds=NUMBERS, says=(r"dropout\(", WRITES)),
    "hinge-tie": Mark(kinds=NUMBERS, says=(r"\bmulti_margin_loss\(",)),
    "overlapping-windows": Mark(kinds=NUMBERS, says=(r"\b(unfold|as_strided)\(", "requires_grad"), never=WRITES),
    "scalar-cumsum": Mark(kinds=("raises",), says=(r"\bcumsum\(",)),
    "sum-as-bool": Mark(kinds=("raises",), says=(r"\bsum\(.*bool",)),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("finds", type=Path, help="the folder of a hunt")
    store = Store(parser.parse_args().finds)
    bugs, began = store.bugs(), min((program["at"] for program in store.programs()), default=0.0)
    console, table = Console(width=150), Table("bug", "what it is", "found as", "after minutes")
    said = [bug for bug in BUGS if bug.name not in UNSAID]
    found = 0
    for bug in said:
        met = sorted((one for one in bugs if MARKS[bug.name].covers(one)), key=lambda one: one.at)
        found += bool(met)
        after = f"{(met[0].at - began) / 60:.0f}" if met else ""
        table.add_row(bug.name, bug.title, met[0].name if met else "not found", after)
    console.print(table)
    for name, reason in UNSAID.items():
        console.print(f"not said by the grammar: {name}: {reason}")
    console.print(f"{found} of {len(said)} that the grammar can say, in {sum(store.statuses().values())} programs")


if __name__ == "__main__":
    main()
