"""Fixtures and backends that many tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1234)


@pytest.fixture
def wrong_backend() -> Callable[..., Any]:
    """Make a torch.compile backend that is eager, but for what `change` does to the list of graph outputs."""

    def make(change: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
        def backend(graph_module: Any, inputs: list[Any]) -> Callable[..., Any]:
            def run(*args: Any) -> tuple[Any, ...]:
                return tuple(change(list(graph_module(*args))))

            return run

        return backend

    return make


@pytest.fixture(scope="module")
def backends() -> Iterator[Any]:
    """The module of backends that are wrong on purpose, where workers find it too."""
    folder = str(Path(__file__).parent / "planted")
    sys.path.insert(0, folder)
    import wrong_backends

    yield wrong_backends
    sys.path.remove(folder)
    del sys.modules["wrong_backends"]
