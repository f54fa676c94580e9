"""Where parts are made of a case, and cases of parts: opens the case and runs its graph, in an expendable process."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from torchparity.compilers.recipe import recipe_plain
from torchparity.errors import ResourceError
from torchparity.graphs.extract import Extractor, opened_graph
from torchparity.graphs.part import Part, with_shapes
from torchparity.minifier.trials import tried
from torchparity.repro.case import Case, make_case, write_graph
from torchparity.repro.opening import Opened, open_case
from torchparity.request import Request


class Workshop:
    """One case, opened."""

    def __init__(self, case: Case) -> None:
        # Sizes that are not symbolic need no dynamic shapes.
        self.case = case if case.symbols else replace(case, request=replace(case.request, dynamic=None))

    @functools.cached_property
    def opened(self) -> Opened:
        """The case, its script run."""
        return open_case(self.case)

    @functools.cached_property
    def random(self) -> dict[str, torch.Tensor]:
        """Where the random generators stand."""
        return self.opened.make()[2]

    @property
    def setting(self) -> Request:
        """How the case is compiled and run."""
        return self.case.request

    @functools.cached_property
    def extractor(self) -> Extractor:
        """What makes parts of the case's graph."""
        found = tried("the graph as it is", lambda: opened_graph(self.opened))
        if found is None:
            raise ResourceError(
                f"the graph of {self.case.name} takes its process along when it is run eagerly",
                hint="run it alone in Python: the model itself crashes here",
            )
        return found

    @functools.cached_property
    def whole(self) -> Part:
        """The case as it is."""
        return self.extractor.whole()

    def case_of(self, part: Part) -> Case:
        """Return the case of a part."""
        case, setting = self.case, part.setting or self.setting
        fresh = part.fresh()
        inputs = list[Any](fresh.inputs)
        differentiable = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        made = make_case(
            write_graph(with_shapes(fresh.graph_module, inputs), inputs),
            inputs,
            name=case.name,
            level=case.level,
            direction=case.direction,
            request=replace(setting, backward=setting.gradients and differentiable, train=False),
            random=self.random,
            origin={"smaller than": case.digest},
            environment=case.environment,
        )
        # A backend that came with a bundle is known by its file alone: this process need not have imported it.
        modules = [line.removeprefix("import ") for line in recipe_plain(setting).backend_source()[0]]
        carried = any(f"{module}.py" in case.files for module in modules)
        return replace(made, files={**case.files, **made.files}) if carried else made
