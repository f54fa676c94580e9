"""What compilers say about themselves, kept out of the log of a test."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep out of the test's log what compilers log about themselves; what they log of a failure is in the verdict."""
    trace, level = logging.getLogger("torch.__trace"), logging.root.manager.disable
    # pytest listens to loggers that do not propagate. Torch writes a trace of every step as soon as someone listens.
    listening = [handler for handler in trace.handlers if type(handler).__module__.startswith("_pytest")]
    for handler in listening:
        trace.removeHandler(handler)
    logging.disable(max(level, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(level)
        for handler in listening:
            trace.addHandler(handler)
