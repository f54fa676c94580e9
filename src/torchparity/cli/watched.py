"""A process that looks on while another one works: what ends the other without a word is told, and is no verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from torchparity.errors import INTERRUPTED, NO_ANSWER

# The child writes this, and its exit code, when it comes to its end by itself.
DONE = b"done"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
HINT = "`torchparity check --isolate` runs it in a process of its own and says which run ended it"
# Sent by a process, not by a terminal: the terminal reaches the child too.
FROM_A_PROCESS = 0


def watched(work: Callable[[], int], otherwise: Callable[[], int] | None = None) -> int:
    """Do the work in a child of this process; return its exit code, or say how it ended without one.

    Where it ended by its own doing, `otherwise` may have an answer: it runs no code of the user's in this process.
    """
    reading, writing = os.pipe()
    signals = {*FORWARDED, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        code = work()
        sys.stdout.flush()
        trouble = getattr(sys.stdout, "trouble", None)
        os.write(writing, DONE + bytes([code if trouble is None else NO_ANSWER]))
        return code
    os.close(writing)
    status, heard = _wait(child, signals)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    words = os.read(reading, len(DONE) + 1)
    os.close(reading)
    if words.startswith(DONE) and len(words) > len(DONE):
        return words[len(DONE)]
    if signal.SIGINT in heard:  # It may have met the child where Python cannot raise, and ended it.
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return _ended(status, otherwise)


def _wait(child: int, signals: set[signal.Signals]) -> tuple[int, set[int]]:
    """Wait for the end of the child; hand on what others send to this process, and tell what that was."""
    heard: set[int] = set()
    while True:
        received = signal.sigwaitinfo(signals)
        heard.add(received.si_signo)
        if received.si_signo != signal.SIGCHLD and received.si_code == FROM_A_PROCESS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, received.si_signo)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status, heard


def _ended(status: int, otherwise: Callable[[], int] | None) -> int:
    """Say how a process ended that did not come to its end, and ask otherwise where that makes sense."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if number == signal.SIGKILL:  # Somebody else's doing, or the machine's for want of memory.
            otherwise = None
        how = f"died of {signal.Signals(number).name}"
    else:
        how = f"was left with {os.WEXITSTATUS(status)}, past every handler"
    if otherwise is not None:
        print(f"the process {how} while it ran the model: asked again in one of its own (--isolate)", file=sys.stderr)
        return otherwise()
    print(f"error: the process {how} while it ran the model: that is no verdict", file=sys.stderr)
    print(f"hint: {HINT}", file=sys.stderr)
    return NO_ANSWER


def _die_with_parent() -> None:
    from torchparity.workers.processes import die_with_parent

    die_with_parent()
