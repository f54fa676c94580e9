"""Inductor, wrong on purpose at one stage: a decomposition, a pass, a lowering, the code it writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from torchparity import torchapi
from torchparity.errors import UsageError

STAGES = ("decomposition", "pre_grad", "joint", "post_grad", "lowering", "codegen")
# A graph that was compiled before without the fault would be found in these.
NO_CACHES = {"functorch.enable_autograd_cache": False, "inductor.fx_graph_cache": False}
# The setting that holds a pass of the user's, for each stage that has one.
SETTINGS = {
    "pre_grad": "pre_grad_custom_pass",
    "joint": "joint_custom_post_pass",
    "post_grad": "post_grad_custom_pre_pass",
}


@dataclass(frozen=True)
class WrongStage:
    """A torch.compile backend that is inductor, but for one operation at one stage: its result is `size` too large.

    `site` counts the uses of the operation; None is all of them.
    """

    stage: str
    operation: str
    site: int | None = 0
    size: float = 0.1

    @property
    def __name__(self) -> str:
        return f"inductor with a wrong {self.stage}"

    def to_source(self) -> tuple[list[str], str]:
        """Return the import and the expression that make this backend again."""
        arguments = f"{self.stage!r}, {self.operation!r}, site={self.site}, size={self.size!r}"
        return ["import torchparity.faults.stages"], f"torchparity.faults.stages.wrong_stage({arguments})"

    def alone(self, direction: str) -> WrongStage:
        """Return the backend for a graph that is compiled by itself."""
        return self

    def __call__(self, graph_module: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        """Compile as torch.compile asks a backend to."""
        with self.planted(), torchapi.patched_config(NO_CACHES):
            return torchapi.inductor.inductor_compile(graph_module, inputs, self.decompositions())

    def decompositions(self) -> dict[Any, Callable[..., Any]] | None:
        """Return inductor's table with one wrong entry, where the decomposition is what is wrong."""
        if self.stage != "decomposition":
            return None
        table = dict(torchapi.inductor.inductor_decompositions())
        for target in [target for target in table if torchapi.target_name(target) == self.operation]:
            table[target] = self._scaled(table[target])
        return table

    def _scaled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        uses = iter(range(1 << 30))

        def wrong(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self.site is not None and next(uses) != self.site:
                return result
            return result * (1.0 + self.size) if isinstance(result, torch.Tensor) else result

        return wrong

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Hold the fault while a graph is compiled."""
        if self.stage in SETTINGS:
            with torchapi.patched_config(
                {f"inductor.{SETTINGS[self.stage]}": torchapi.inductor.custom_pass(self._edit)}
            ):
                yield
        elif self.stage == "lowering":
            with torchapi.inductor.replaced_lowering(self.operation, self.site, 1.0 + self.size):
                yield
        elif self.stage == "codegen":
            with torchapi.inductor.replaced_vector_code(self.operation, 1.0 + self.size):
                yield
        else:
            yield

    def _edit(self, graph: Graph) -> None:
        multiply = torch.mul if self.stage == "pre_grad" else torch.ops.aten.mul.Tensor
        calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
        uses = [node for node in calls if torchapi.target_name(node.target) == self.operation]
        for place, node in enumerate(uses):
            if self.site is None or place == self.site:
                users = list(node.users)
                with graph.inserting_after(node):
                    wrong = graph.call_function(multiply, (node, 1.0 + self.size))
                    wrong.meta = dict(node.meta)
                for user in users:
                    user.replace_input_with(node, wrong)


def wrong_stage(stage: str, operation: str, *, site: int | None = 0, size: float = 0.1) -> WrongStage:
    """Return inductor with one wrong operation at one stage."""
    if stage not in STAGES:
        raise UsageError(f"there is no stage {stage!r} to be wrong at", hint=f"use one of {', '.join(STAGES)}")
    return WrongStage(stage, operation, site, size)
