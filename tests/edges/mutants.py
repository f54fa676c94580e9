"""Bundles, runs and logs as a stranger might send them: bits, structure, types, sizes; checksums made right or not."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchparity.repro.looking import FACTS, IDENTITY, SCRIPT, TENSORS, check_of, graph_section

HUGE = 10**30
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), HUGE, 1e308, -0.0, 0.5, "", "x", "inf", "nan",
    "\x1b[31mred\x07", "../../etc/passwd", "a" * 10_000, "-" * 30_000 + "1", "(" * 5_000, "[" * 5_000,
    "__import__('os').system('touch pwned')",
    "torch.load", [], [[]], [[[[]]]], {}, {"kind": "dense"}, {"": ""}, ["import os; os.system('touch pwned')"],
    [1, "two", None], {"expression": "open('pwned', 'w')", "imports": ["import os; open('pwned', 'w')"]},
    list(range(1000)), {"__class__": "x"}, "\ud800", "\u202egnp.exe", float("inf"), float("nan"),
)  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything inside JSON data."""
    if path:
        yield path
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def strange(dice: random.Random) -> Any:
    """Return something strange, a copy of one's own: what is put in may be changed again."""
    return copy.deepcopy(dice.choice(STRANGE))


def changed(data: Any, dice: random.Random) -> Any:
    """Return JSON data with one to three things in it that are strange."""
    data = copy.deepcopy(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        known = list(places(data))
        if not known:
            return data
        path = dice.choice(known)
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        what = dice.randrange(5)
        if what == 0 and isinstance(holder, dict):
            holder.pop(path[-1])
        elif what == 0:
            del holder[path[-1]]
        elif what == 1 and isinstance(holder, dict):
            holder[str(dice.choice(STRANGE))[:50]] = strange(dice)
        elif what == 2 and isinstance(holder, list):
            holder.extend([holder[path[-1]]] * dice.choice((1, 3, 200)))
        elif what == 3:
            other = dice.choice(known)
            found = data
            for key in other:
                found = found[key] if not isinstance(found, (str, int, float, type(None))) else found
            holder[path[-1]] = copy.deepcopy(found)
        else:
            holder[path[-1]] = strange(dice)
    return data


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Return bytes with bits turned, cut short, grown, doubled or swapped."""
    data = bytearray(content)
    what = dice.randrange(6)
    if what == 0:
        for _ in range(dice.choice((1, 3, 50))):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif what == 1:
        del data[dice.randrange(len(data)) :]
    elif what == 2:
        place = dice.randrange(len(data))
        data[place:place] = bytes(dice.randrange(256) for _ in range(dice.choice((1, 8, 500))))
    elif what == 3:
        data += data[: dice.randrange(len(data))]
    elif what == 4:
        data[:8] = struct.pack("<Q", dice.choice((0, 1, 2**20, 2**40, 2**63, 2**64 - 1)))
    else:
        data = bytearray(
            dice.choice((b"", b"null", b"[]", b"{", b"\xff\xfe", b"{" * 5000, b'{"a":' * 3000, b"0" * 100))
        )
    return bytes(data)


def mutated_bundle(folder: Path, dice: random.Random) -> None:
    """Change a copy of a bundle in place."""
    if dice.random() < 0.35:
        name = dice.choice((FACTS, SCRIPT, TENSORS))
        (folder / name).write_bytes(damaged((folder / name).read_bytes(), dice))
        return
    facts = changed(json.loads((folder / FACTS).read_text()), dice)
    if isinstance(facts, dict) and dice.random() < 0.75:
        repair(folder, facts)
    text = json.dumps(facts, indent=2, sort_keys=dice.random() < 0.5)
    (folder / FACTS).write_text(text, encoding="utf-8", errors="surrogatepass")
    if dice.random() < 0.03:
        with (folder / TENSORS).open("r+b") as file:  # A hole that says it is large.
            file.truncate(200 << 30)


def repair(folder: Path, facts: dict[str, Any]) -> None:
    """Make the checksums of strange facts right again, as far as they can be made."""
    try:
        script = (folder / SCRIPT).read_text()
        facts["script"] = hashlib.sha256(script.encode()).hexdigest()
        identity = {name: facts[name] for name in IDENTITY}
        identity["graph"] = hashlib.sha256(graph_section(script).encode()).hexdigest()
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        facts["digest"] = hashlib.sha256(text.encode()).hexdigest()
    except (KeyError, TypeError, ValueError):
        pass
    with contextlib.suppress(TypeError, ValueError):
        facts["check"] = check_of(facts)


def mutated_lines(text: str, dice: random.Random) -> bytes:
    """Return a log with strange lines."""
    if dice.random() < 0.4:
        return damaged(text.encode(), dice)
    lines = [json.loads(line) for line in text.splitlines()]
    place = dice.randrange(len(lines))
    lines[place] = changed(lines[place], dice)
    if dice.random() < 0.1:
        dice.shuffle(lines)
    return "".join(json.dumps(line) + "\n" for line in lines).encode("utf-8", "surrogatepass")


def mutated_run(text: str, dice: random.Random) -> bytes:
    """Return a run.json that is strange."""
    if dice.random() < 0.3:
        return damaged(text.encode(), dice)
    return json.dumps(changed(json.loads(text), dice)).encode("utf-8", "surrogatepass")
