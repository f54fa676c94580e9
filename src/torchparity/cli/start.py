"""Where the command line begins, before anything slow is imported: what an exit code means holds from here on.

    0 same, 1 differs and only that, 2 usage, 3 nothing fails, 125 no answer, 130 interrupted

A closed pipe is no error, a full one is no verdict; an error of ours is no answer. Commands that run a model in this
very process are watched by another one, so that a model which ends its process (`os._exit(0)`, a segfault) does not
pass for a verdict.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchparity.errors import INTERRUPTED, NO_ANSWER

INTERRUPTS: list[int] = []
# What an interrupt leaves of those that write.
KEPT = {
    "capture": "the bundles that were written are kept",
    "minify": "what was found is kept",
    "diagnose": "what was found is kept",
    "hunt": "what was found is kept",
    "sweep": "the verdicts that were reached are kept",
}
# Commands that end an interrupted run well, and say so.
TELL_THEMSELVES = ("diagnose", "minify", "since")
# Commands that call the user's code in their own process.
RUN_HERE = ("check", "capture", "explain", "passes")


class Output(io.TextIOBase):
    """Standard output that outlives its reader, and remembers what else went wrong with it."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream
        self.trouble: OSError | None = None
        self.gone = False

    def _try(self, action: Callable[[], Any]) -> None:
        if self.gone:
            return
        try:
            action()
        except OSError as error:
            self.gone = True
            self.trouble = None if isinstance(error, BrokenPipeError) else error
            with contextlib.suppress(OSError, ValueError):  # What is left in its buffer has nowhere to go.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def write(self, text: str) -> int:
        """Write, or lose what nobody reads."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        self._try(self.stream.flush)

    def isatty(self) -> bool:
        """Tell whether a person looks at it."""
        return bool(self.stream.isatty())

    def fileno(self) -> int:
        """Return the descriptor."""
        return int(self.stream.fileno())

    def writable(self) -> bool:
        """Tell that it may be written to."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return str(self.stream.encoding)

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What it does with what its encoding lacks."""
        found: str | None = self.stream.errors
        return found

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self.stream, name)


def main() -> None:
    """Run the command line, and leave with a code that means what it says."""
    can_watch = hasattr(os, "fork") and hasattr(signal, "sigwaitinfo") and "RANK" not in os.environ
    begin(watch=len(sys.argv) > 1 and sys.argv[1] in RUN_HERE and can_watch)


def begin(*, watch: bool = False) -> None:
    """Run the command line in this process, or in one that this process watches."""
    code = NO_ANSWER
    try:
        if sys.stdout is None:  # Closed from the start: nobody listens, and the code tells all the same.
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process
        output = Output(sys.stdout)
        sys.stdout = output
        if watch:
            from torchparity.cli.watched import watched

            code = watched(run, apart if sys.argv[1] == "check" and not said_where(sys.argv) else None)
        else:
            code = run()
        output.flush()
        sys.stdout = output.stream
        if output.trouble is not None:
            say(f"error: the output could not be written: {output.trouble.strerror}")
            say("hint: what was found is lost; is the disk full?")
            code = NO_ANSWER
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    sys.exit(code)


def said_where(words: list[str]) -> bool:
    """Tell whether a command line says in which process the model is to run."""
    return any(word in ("--isolate", "--no-isolate") for word in words)


def apart() -> int:
    """Run the command in this process, and what it calls of the user's in another one."""
    sys.argv.insert(2, "--isolate")
    return run()


def run() -> int:
    """Run the command in this process; return its exit code."""
    heed_interrupts()
    try:
        from torchparity.cli.main import command

        code = command()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told, and is no answer
        return interrupted() if INTERRUPTS or isinstance(error, KeyboardInterrupt) else failed(error)
    told = code == INTERRUPTED and sys.argv[1] in TELL_THEMSELVES  # The parser makes an exit code of an interrupt.
    return interrupted() if INTERRUPTS and not told else code


def heed_interrupts() -> None:
    """Remember that an interrupt came: what it is raised in may swallow it, or make another error of it.

    Whoever ends a command by other means (`timeout`, a job that is cancelled, a terminal that is closed) wants the
    same of it: what was found is kept, and nothing is left behind.
    """

    def hear(number: int, frame: Any) -> None:
        INTERRUPTS.append(number)
        signal.default_int_handler(number, frame)

    def unraisable(told: Any) -> None:
        if told.exc_type is KeyboardInterrupt:  # Raised where nothing can be: again, a little later.
            os.kill(os.getpid(), INTERRUPTS[-1] if INTERRUPTS else signal.SIGINT)
        else:
            sys.__unraisablehook__(told)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # Not where it is ignored.
            signal.signal(number, hear)
    sys.unraisablehook = unraisable


def interrupted() -> int:
    """Say what an interrupt leaves."""
    say(f"interrupted; {KEPT.get(sys.argv[1] if len(sys.argv) > 1 else '', 'nothing was written')}")
    return INTERRUPTED


def failed(error: BaseException) -> int:
    """Say why there is no answer."""
    if isinstance(error, SystemExit):
        say(f"error: the target, or something that it calls, ended the process: sys.exit({error.code!r})")
        say("hint: that is no verdict; a target must return")
    elif isinstance(error, MemoryError):
        say("error: out of memory")
        say("hint: use smaller inputs, or a machine with more memory")
    elif isinstance(error, OSError):
        say(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        say("hint: the machine said that, not the model; is there room, is it allowed, is the folder there?")
    else:
        return ours(error)
    return NO_ANSWER


def ours(error: BaseException) -> int:
    """Say that an error is our own, and where its traceback lies."""
    place = "and its traceback could not be written"
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="torchparity-error-", suffix=".txt")
        os.close(handle)
        told = f"{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
        Path(name).write_text(told, encoding="utf-8", errors="replace")
        place = f"its traceback lies in {name}"
    first = (str(error).strip().splitlines() or [""])[0][:200]
    say(f"error: torchparity itself failed: {type(error).__name__}: {first}")
    say(f"hint: this is a bug of ours and says nothing of the model; please report it; {place}")
    return NO_ANSWER


def say(line: str) -> None:
    """Print a line on standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, file=sys.stderr, flush=True)
