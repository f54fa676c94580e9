"""How much of a model was compiled: operations that ran inside graphs, against those that eager runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.fx import GraphModule

from torchparity import torchapi


class Coverage:
    """Hears every compilation of a candidate, and counts what runs in its graphs."""

    def __init__(self) -> None:
        self.graphs = 0
        self.calls = 0
        self.operations = 0
        self._left = torchapi.left_to_python()

    @property
    def left(self) -> tuple[str, ...]:
        """Why code was left to Python while this was listening."""
        return tuple(torchapi.left_to_python() - self._left)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen."""
        with torchapi.heard_compilations(self._hear):
            yield

    def forget(self) -> None:
        """Begin anew, with another candidate."""
        self.graphs = self.calls = self.operations = 0
        self._left = torchapi.left_to_python()

    def begin(self) -> None:
        """Forget what earlier runs did; what was compiled stays."""
        self.calls = self.operations = 0

    def _hear(self, graph_module: GraphModule, inputs: list[Any], compile_graph: Callable[[], Any]) -> Any:
        count = torchapi.operations_of(graph_module, inputs)
        compiled = compile_graph()  # What raises here may go on in eager: then it does not count.
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.calls += 1
            self.operations += count
            return compiled(*args)

        return run
