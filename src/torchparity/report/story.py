"""The story of a compilation as a person reads it: a tree of calls, frames and subgraphs; and as JSON."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from torchparity.records import (
    COMPILED,
    SCHEMA_VERSION,
    Break,
    CallStory,
    FrameStory,
    GraphInput,
    Inlined,
    Place,
    Recompile,
    SizeSymbol,
    Story,
    Subgraph,
)
from torchparity.records.wire import plain_data

SHOWN_FUNCTIONS = 12
SHOWN_INPUTS = 4
WIDTH = 80
ROOT = re.compile(r"\b[LG]\['(\w+)'\]")
MEMBER = re.compile(r"(?:\.__dict__)?(?:\._(?:modules|parameters|buffers))?\['([A-Za-z_]\w*)'\]")
BUILTIN = re.compile(r"\b__builtins_dict__\w*\.")
IMPORTED = re.compile(r"\b__import_(\w+)")
SIZE_MARK = re.compile(r"hasattr\((?P<name>.+), '_dynamo_\w+_indices'\) == False")
TENSOR_FACT = re.compile(
    r"tensor '(?P<name>.+?)' (?P<fact>[\w ]+?) mismatch(?: at index (?P<index>\d+))?\.? "
    r"expected (?P<expected>.+?),? (?:but got|actual) (?P<actual>.+)"
)
SAME_OBJECT = re.compile(r"___check_obj_id\((?P<name>.+), \d+\), type=<class '(?P<kind>.+)'>")
SAME_TYPE = re.compile(r"___check_type_id\((?P<name>.+), \d+\), type=<class '(?P<kind>.+)'>")
SAME_TENSOR = re.compile(
    r"check_tensor\((?P<name>.+?), \w+, DispatchKeySet\(.*?\), torch\.(?P<dtype>\w+), device=(?P<device>\w+), "
    r"requires_grad=(?P<grad>\w+), size=(?P<size>\[.*?\]), stride=(?P<stride>\[.*?\])\)"
)


def story_data(story: Story) -> dict[str, Any]:
    """Return a story as plain data, ready for JSON."""
    data = plain_data(story)
    assert isinstance(data, dict)
    counts = {
        "subgraphs": len(story.subgraphs),
        "breaks": len(story.breaks),
        "recompiles": len(story.recompiled),
        "compile_seconds": story.compile_seconds,
    }
    return {"schema": SCHEMA_VERSION, **data, "counts": counts, "exit_code": story.exit_code}


def render_story(story: Story, console: Console, *, guards: bool = False, inlined: bool = False) -> None:
    """Print a story; with every guard, and with every function that was inlined, where that is wanted."""
    console.print(words(headline(story), "bold"))
    late = f"compiling took {story.compile_seconds:.2f} s of {story.seconds:.2f} s (torch {story.torch})"
    console.print(words(late, "dim"))
    told: dict[str, list[tuple[str, int, int]]] = {}
    for call in story.calls:
        frames = [frame for frame in story.frames if frame.call == call.number]
        tree = Tree(call_label(call, frames), guide_style="dim")
        for frame in frames:
            shape = [(function.function, function.depth, function.times) for function in frame.inlined]
            number = frame.name.split("/")[0]
            before = number in told and told[number] == shape
            told[number] = shape
            add_frame(tree, frame, guards=guards, inlined=inlined, inlined_before=before)
        console.print(tree)
    if story.failure is not None:
        console.print(words(f"raised {story.failure.type}: {story.failure.message}", "red"))
    for note in story.notes:
        console.print(words(f"note: {note}", "yellow"))


def story_text(story: Story, *, guards: bool = False, inlined: bool = False, width: int = WIDTH) -> str:
    """Return what `render_story` prints, without colour."""
    buffer = io.StringIO()
    render_story(story, Console(file=buffer, width=width, no_color=True), guards=guards, inlined=inlined)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def headline(story: Story) -> str:
    """Say in one line how much there was."""
    functions = len({frame.name.split("/")[0] for frame in story.frames})
    left = sum(frame.outcome != COMPILED for frame in story.frames)
    parts = [
        counted(functions, "frame"),
        counted(len(story.subgraphs), "subgraph"),
        counted(len(story.breaks), "graph break"),
        counted(len(story.recompiled), "recompile"),
    ]
    parts += [f"{left} not compiled"] if left else []
    return f"{story.subject} on {story.backend}: {', '.join(parts)}"


def call_label(call: CallStory, frames: list[FrameStory]) -> Text:
    """Return the line of a call."""
    given = listed(call.inputs, SHOWN_INPUTS)
    label = words(f"call {call.number}", "bold").append_text(words(f"  {given}" if given else ""))
    what = f"  {call.ran.seconds:.2f} s" + ("" if frames else ", nothing to compile")
    return label.append_text(words(what, "dim"))


def add_frame(tree: Tree, frame: FrameStory, *, guards: bool, inlined: bool, inlined_before: bool) -> None:
    """Add a frame, and all that came of it, to the tree of its call."""
    name = without_locals(frame.function)
    if frame.resumes_after is not None:
        name = f"rest of {name} after line {frame.resumes_after}"
    label = words(f"{frame.name} ", "dim").append_text(words(name, "bold"))
    if frame.resumes_after is None:
        label.append_text(words(f"  {place_words(frame.place)}"))
    branch = tree.add(label.append_text(words(f"  {frame.compiled.seconds:.2f} s", "dim")))
    for recompile in frame.recompiles:
        branch.add(words(f"recompiled: {recompile_words(recompile)}", "yellow"))
    add_tracing(branch, frame, inlined=inlined, inlined_before=inlined_before)
    for subgraph in frame.subgraphs:
        add_subgraph(branch, subgraph)
    if frame.outcome != COMPILED:
        where = f" at {place_words(frame.refused_at)}" if frame.refused_at is not None else ""
        refused = branch.add(words(f"{frame.outcome}{where}: {frame.reason}", "red"))
        if frame.refused_at is not None and frame.refused_at.source:
            refused.add(words(frame.refused_at.source))
        return
    if not frame.subgraphs:
        branch.add(words("no operation to compile", "dim"))
    held = branch.add(words(counted(len(frame.guards), "guard"), "dim"))
    for line in guard_lines(frame.guards) if guards else ():
        held.add(words(line))
    if frame.ends is not None:
        add_break(branch, frame.ends)


def add_tracing(branch: Tree, frame: FrameStory, *, inlined: bool, inlined_before: bool) -> None:
    """Add how far Dynamo traced, and the functions of the user's that it traced into."""
    own = own_functions(frame.inlined)
    steps = counted(frame.steps, "step") + (f", {frame.attempts} attempts" if frame.attempts > 1 else "")
    if not own:
        branch.add(words(steps, "dim"))
        return
    deepest = max(function.entry.depth for function in own)
    what = f"{steps}; inlined {counted(len(own), 'function')}, {deepest} deep"
    if inlined_before and not inlined:
        branch.add(words(f"{what}, as before", "dim"))
        return
    root = branch.add(words(what, "dim"))
    shown = own if inlined else heaviest(own)
    parents = [root]
    for function in shown:
        del parents[function.level + 1 :]
        times = f"  {function.entry.times} times" if function.entry.times > 1 else ""
        place = f"{Path(function.entry.place.file).name}:{function.entry.place.line}"
        label = words(without_locals(function.entry.function)).append_text(words(f"  {place}{times}", "dim"))
        parents.append(parents[function.level].add(label))
    if len(own) > len(shown):
        root.add(words(f"and {len(own) - len(shown)} with fewer steps (--inlined shows them)", "dim"))


@dataclass
class Own:
    """A function that is not torch's or Python's own: how many such stand above it, and the steps in and below it."""

    entry: Inlined
    level: int
    steps: int = 0


def own_functions(inlined: Iterable[Inlined]) -> list[Own]:
    """Return the functions that are not torch's or Python's own, with the steps of those that are counted in."""
    found: list[Own] = []
    above: list[Own] = []
    for entry in inlined:
        while above and above[-1].entry.depth >= entry.depth:
            above.pop()
        if not entry.library:
            found.append(Own(entry=entry, level=len(above)))
            above.append(found[-1])
        for function in above:
            function.steps += entry.steps
    return found


def heaviest(functions: list[Own]) -> list[Own]:
    """Return the few with the most steps, in order. None is without those above it, which have no fewer."""
    ranks = sorted(range(len(functions)), key=lambda place: (-functions[place].steps, place))
    return [functions[place] for place in sorted(ranks[:SHOWN_FUNCTIONS])]


def add_subgraph(branch: Tree, subgraph: Subgraph) -> None:
    """Add a graph: how large it is, what it takes, what is left open in it."""
    times = f"{subgraph.compiled.seconds:.2f} s"
    times += f", backward {subgraph.backward.seconds:.2f} s" if subgraph.backward is not None else ""
    label = words(f"subgraph {subgraph.number}", "green")
    label.append_text(words(f": {counted(subgraph.operations, 'operation')}"))
    graph = branch.add(label.append_text(words(f"  {times}", "dim")))
    if subgraph.inputs:
        graph.add(words(inputs_words(subgraph.inputs)))
    if subgraph.symbols:
        graph.add(words("symbols: " + ", ".join(symbol_words(symbol) for symbol in subgraph.symbols)))
    for body in subgraph.bodies:
        graph.add(words(f"{body.operator}: {body.name}, {counted(body.operations, 'operation')}"))


def add_break(branch: Tree, ends: Break) -> None:
    """Add the break that ended a graph."""
    broken = branch.add(words(f"graph break at {place_words(ends.place)}: {ends.reason}", "red"))
    if ends.place.source:
        broken.add(words(ends.place.source))


# --- words ---------------------------------------------------------------------------------------


def words(text: str, style: str = "") -> Text:
    """Return text that is shown as it is: no markup, and no character that a terminal would obey."""
    return Text("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text), style)


def counted(count: int, noun: str) -> str:
    """Return `1 frame`, `2 frames`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(entries: Iterable[str], most: int) -> str:
    """Return the first few entries, and how many more there are."""
    every = list(entries)
    more = [f"{len(every) - most} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def without_locals(function: str) -> str:
    """Return the name of a function inside a function as the user would say it."""
    return function.replace(".<locals>", "")


def place_words(place: Place) -> str:
    """Return `file:line`, the file as seen from here or from where it was imported."""
    return f"{short_path(place.file)}:{place.line}"


def short_path(file: str) -> str:
    """Return a path from the current folder, or else from the nearest folder that Python imports from."""
    path = Path(file)
    homes = [Path.cwd(), *sorted((Path(entry) for entry in sys.path if entry), key=lambda home: -len(home.parts))]
    for home in homes:
        # A folder such as `/` would make nothing shorter.
        if len(home.parts) > 1 and path.is_relative_to(home):
            shown = path.relative_to(home)
            if "site-packages" not in shown.parts:
                return str(shown)
    return file


def inputs_words(inputs: tuple[GraphInput, ...]) -> str:
    """Name what the caller gives to a graph, and count what the model brings."""
    given = [f"{entry.name} {entry.dtype}[{', '.join(entry.sizes)}]" for entry in inputs if not entry.state]
    state = [entry for entry in inputs if entry.state]
    parts = [listed(given, SHOWN_INPUTS)] if given else []
    if state:
        total = sum(entry.elements for entry in state)
        parts.append(f"{counted(len(state), 'tensor')} of the model's ({number_words(total)} numbers)")
    return f"takes {' and '.join(parts)}"


def number_words(number: int) -> str:
    """Return 1234567 as `1.2 M`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return str(number)


def symbol_words(symbol: SizeSymbol) -> str:
    """Return `s77 = 6 (2 or more)`."""
    if symbol.low is None:
        span = "" if symbol.high is None else f" (up to {symbol.high})"
    else:
        span = f" ({symbol.low} or more)" if symbol.high is None else f" ({symbol.low} to {symbol.high})"
    return f"{symbol.name} = {symbol.value}{span}"


def recompile_words(recompile: Recompile) -> str:
    """Say why an earlier compilation did not fit, in the user's words."""
    earlier = recompile.earlier or "what there was"
    found = TENSOR_FACT.fullmatch(recompile.guard)
    if found is None:
        return f"{earlier} needs: {guard_words(recompile.guard)}"
    where = f" in dimension {found['index']}" if found["index"] is not None else ""
    fact = f"{found['fact']} {found['actual']}{where}"
    return f"{plain_names(found['name'])} has {fact}, {earlier} needs {found['expected']}"


def guard_lines(guards: tuple[str, ...]) -> list[str]:
    """Return a line for each guard, and one for all that ask whether the user has marked the sizes of a tensor."""
    lines: dict[str, int] = {}
    for guard in guards:
        line = guard_words(guard)
        found = SIZE_MARK.fullmatch(line)
        line = f"no size of {found['name']} is marked as dynamic or static" if found else line
        lines[line] = lines.get(line, 0) + 1
    return [line if count == 1 else f"{line} ({count} guards)" for line, count in lines.items()]


def guard_words(guard: str) -> str:
    """Return what a guard asks for, with the user's names and without addresses."""
    text = plain_names(guard.partition("  # ")[0])
    if text.startswith("___check_global_state"):
        return "torch's global state: gradient mode, autocast, determinism, threads"
    if text.startswith("___check_torch_function_mode_stack"):
        return "torch's function modes"
    if found := SAME_OBJECT.fullmatch(text):
        return f"{found['name']} is the same {found['kind']}"
    if found := SAME_TYPE.fullmatch(text):
        return f"{found['name']} is a {found['kind']}"
    if found := SAME_TENSOR.fullmatch(text):
        device = "" if found["device"] == "None" else f" on device {found['device']}"
        grad = " with gradient" if found["grad"] == "True" else ""
        size = found["size"].replace("None", "any")
        stride = found["stride"].replace("None", "any")
        return f"{found['name']} is {found['dtype']}{size}, stride {stride}{device}{grad}"
    return text


def plain_names(text: str) -> str:
    """Return an expression of the compiler's with names as the user writes them: `self.head.weight`, `x`."""
    text = BUILTIN.sub("", MEMBER.sub(r".\1", ROOT.sub(r"\1", text)))
    return IMPORTED.sub(lambda found: found[1].replace("_dot_", "."), text)
