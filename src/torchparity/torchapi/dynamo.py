"""Watching Dynamo: frames, inlined calls, breaks, guards and recompiles, told to a listener."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, Protocol

from torchparity.errors import TorchVersionError
from torchparity.torchapi.door import lookup

# A line of a stack: file, number, function, text.
Line = tuple[str, int, str, str]


class Listener(Protocol):
    """What wants to hear of a compilation while it goes on."""

    def frame_entered(self, name: str, code: CodeType) -> None:
        """Dynamo begins to compile a function."""

    def frame_left(self, guards: list[str] | None, skipped: str, error: BaseException | None) -> None:
        """It is done: with guards, or with the reason why the function is left to Python, or with an error."""

    def function_entered(self, code: CodeType) -> None:
        """Dynamo begins to trace a function: the frame itself, once for each attempt, or one inside it."""

    def function_left(self) -> None:
        """It is done with that function."""

    def stepped(self) -> None:
        """One instruction is about to be traced."""

    def break_met(self, reason: str, lines: list[Line]) -> None:
        """Dynamo has met what it cannot trace, and will begin again or give the function up."""

    def graph_ended(self, reason: str, lines: list[Line], is_break: bool) -> None:
        """A graph is complete, because the function returned or because it broke."""

    def recompiling(self, reasons: list[str]) -> None:
        """What was compiled for this function before did not fit; one reason for each."""

    def backward_started(self, name: str) -> None:
        """The backward pass of a frame is about to be compiled, when it is first needed."""

    def backward_ended(self, name: str) -> None:
        """It has been compiled."""

    def not_heard(self, what: str, error: BaseException) -> None:
        """Something above could not be told."""


@contextlib.contextmanager
def watching_dynamo(listener: Listener) -> Iterator[None]:
    """Let a listener hear of every compilation; what it, or this, does wrong never reaches the compiler."""
    with contextlib.ExitStack() as stack:
        for path, before, after in WATCHED:
            try:
                stack.enter_context(_watched(path, listener, before, after))
            except TorchVersionError as error:
                listener.not_heard(path, error)
        try:
            stack.enter_context(_watched_backward(listener))
        except TorchVersionError as error:
            listener.not_heard(BACKWARD_EVENTS, error)
        yield


Before = Callable[[Listener, tuple[Any, ...], Mapping[str, Any]], None]
After = Callable[[Listener, Any, BaseException | None], None]


@contextlib.contextmanager
def _watched(path: str, listener: Listener, before: Before | None, after: After | None) -> Iterator[None]:
    """Put a function that tells a listener in the place of one of Dynamo's, for the length of the context."""
    original = lookup(path)
    owner_path, _, name = path.rpartition(".")
    owner = lookup(owner_path)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            _tell(listener, path, before, args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if after is not None:
                _tell(listener, path, after, None, error)
            raise
        if after is not None:
            _tell(listener, path, after, result, None)
        return result

    setattr(owner, name, watched)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _tell(listener: Listener, path: str, speak: Callable[..., None], *facts: Any) -> None:
    try:
        speak(listener, *facts)
    except Exception as error:  # noqa: BLE001 - the listener is told, and the compiler goes on
        listener.not_heard(path, error)


@contextlib.contextmanager
def heard_compilations(hear: Callable[[Any, list[Any], Callable[[], Any]], Any]) -> Iterator[None]:
    """Call `hear(graph_module, inputs, compile)` in place of every backend; it returns what is to be called."""
    owner = lookup("torch._dynamo.output_graph.OutputGraph")
    original = owner.call_user_compiler

    def call(self: Any, graph_module: Any, inputs: list[Any]) -> Any:
        return hear(graph_module, inputs, lambda: original(self, graph_module, inputs))

    owner.call_user_compiler = call
    try:
        yield
    finally:
        owner.call_user_compiler = original


# By file and line, for Dynamo's own log; a file is taken apart for it: 0.6 s for that of `torch.nn.functional`.
FUNCTION_NAMES = "torch._dynamo.funcname_cache"


class _Nameless(dict[str, dict[int, str]]):
    """Knows every file, and no function in it."""

    def __contains__(self, path: object) -> bool:
        return True

    def __missing__(self, path: str) -> dict[int, str]:
        return {}


def forget_function_names() -> None:
    """Let Dynamo not look up, in this process, in which function a line stands, as long as nobody reads its log."""
    if "TORCH_LOGS" not in os.environ:
        lookup(FUNCTION_NAMES).cache = _Nameless()


BACKWARD_EVENTS = "torch._dynamo.callback.callback_handler"


@contextlib.contextmanager
def _watched_backward(listener: Listener) -> Iterator[None]:
    """Tell a listener of backward passes that are compiled late."""
    handler = lookup(BACKWARD_EVENTS)
    late = lookup("torch._dynamo.callback.CallbackTrigger.LAZY_BACKWARD")

    def started(event: Any) -> None:
        if event.callback_trigger is late:
            _tell(listener, BACKWARD_EVENTS, lambda ear: ear.backward_started(str(event.compile_id)))

    def ended(event: Any) -> None:
        if event.callback_trigger is late:
            _tell(listener, BACKWARD_EVENTS, lambda ear: ear.backward_ended(str(event.compile_id)))

    handler.register_start_callback(started)
    handler.register_end_callback(ended)
    try:
        yield
    finally:
        # A reset of the compiler has removed them already.
        if started in handler.start_callbacks:
            handler.remove_start_callback(started)
        if ended in handler.end_callbacks:
            handler.remove_end_callback(ended)


def _lines(stack: Any) -> list[Line]:
    return [(frame.filename, frame.lineno or 0, frame.name, frame.line or "") for frame in stack or ()]


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return kwargs[name] if name in kwargs else args[place]


def _frame_entered(listener: Listener, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    listener.frame_entered(str(kwargs.get("compile_id", "")), _argument(args, kwargs, 0, "code"))


def _frame_left(listener: Listener, result: Any, error: BaseException | None) -> None:
    code = getattr(result, "guarded_code", result)
    manager = getattr(code, "guard_manager", None)
    guards = None if manager is None else [str(part) for part in manager.code_parts]
    listener.frame_left(guards, str(getattr(result, "skip_reason", None) or ""), error)


def _break_met(listener: Listener, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    error = kwargs.get("exc")
    listener.break_met(str(_argument(args, kwargs, 2, "reason")), failure_lines(error))


def _graph_ended(listener: Listener, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    reason = _argument(args, kwargs, 2, "reason")
    listener.graph_ended(str(reason.reason), _lines(reason.user_stack), bool(reason.graph_break))


def failure_lines(error: BaseException | None) -> list[Line]:
    """Return the stack of the user's own code that a compiler error remembers."""
    return _lines(getattr(error, "real_stack", None))


WATCHED: tuple[tuple[str, Before | None, After | None], ...] = (
    ("torch._dynamo.convert_frame._compile", _frame_entered, _frame_left),
    (
        "torch._dynamo.symbolic_convert.InstructionTranslatorBase.run",
        lambda listener, args, kwargs: listener.function_entered(args[0].f_code),
        lambda listener, result, error: listener.function_left(),
    ),
    (
        "torch._dynamo.symbolic_convert.InstructionTranslatorBase.step",
        lambda listener, args, kwargs: listener.stepped(),
        None,
    ),
    ("torch._dynamo.symbolic_convert.InstructionTranslatorBase.log_graph_break", _break_met, None),
    ("torch._dynamo.output_graph.OutputGraph.compile_subgraph", _graph_ended, None),
    (
        "torch._dynamo.convert_frame.get_and_maybe_log_recompilation_reasons",
        None,
        lambda listener, result, error: listener.recompiling([str(reason) for reason in result or ()]),
    ),
)
