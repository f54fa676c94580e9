"""The ground that the reference and the noise stand on: a mode that sees every ATen operation of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchparity import torchapi
from torchparity.run.operators import Traits, traits_of

# Exact, or a decision, for real numbers; |z| and z / |z| round like anything else.
CONTINUOUS_IF_COMPLEX = ("abs", "abs_", "absolute", "absolute_", "sgn", "sgn_")
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Watch(torchapi.TorchDispatchMode):
    """Calls `operate` for every operation on plain tensors, forward and backward, bodies of
    higher-order operators and the inside of wrapper tensors included.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        # How many operations the forward pass ran that compute something.
        self.operations = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let eager code that calls torch.compile inside itself (flex_attention) go on as it does."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send each call where it can be seen in plain operations."""
        keywords = dict(kwargs or {})
        if isinstance(func, torchapi.HigherOrderOperator):
            return self._inside(func, args, keywords)
        if any(kind not in PLAIN_TYPES for kind in types):
            if any(torchapi.takes_apart(kind) for kind in types):
                return NotImplemented  # The wrapper takes it apart, and this mode sees the parts.
            return func(*args, **keywords)
        if torchapi.is_collective(func):
            return self.collect_from_ranks(func, args, keywords)
        traits = traits_of(func)
        if traits.random and drops_nothing(func, args, keywords):
            traits = replace(traits, random=False, replayed=False)
        if traits.name in CONTINUOUS_IF_COMPLEX and args and getattr(args[0], "is_complex", bool)():
            traits = replace(traits, exact=False, decides=False)
        self.operations += not (traits.view or torchapi.in_backward())
        return self.operate(func, traits, args, keywords)

    def operate(self, func: Callable[..., Any], traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation on plain tensors."""
        raise TypeError(f"{type(self).__name__} does not say what to do with {traits.name}")

    def collect_from_ranks(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a collective to its end: whoever looks at its results next must not meet half of them."""
        outputs = func(*args, **kwargs)
        torchapi.wait_for_collective(outputs)
        return outputs

    def _inside(self, operator: torchapi.HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator's body with this mode on, where there is a way to."""
        name = operator.name()
        if name == "cond":
            predicate, true_branch, false_branch, operands = args
            with self:
                return (true_branch if bool(predicate) else false_branch)(*operands)
        kernel = torchapi.higher_order_kernel(operator)
        if kernel is None:
            return operator(*args, **kwargs)
        with self:
            return kernel(*args, **kwargs)


def drops_nothing(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether an attention kernel, tagged as random because it may drop, is asked to drop nothing."""
    return bool(torchapi.given_argument(func, "dropout_p", args, kwargs) == 0)


def written_tensors(traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a call writes to."""
    found: list[Any] = []
    for place in traits.written:
        if isinstance(place, str):
            found.append(kwargs.get(place))
        elif place < len(args):
            found.append(args[place])
    return torchapi.tensors_in(found)


def fresh_outputs(outputs: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the output tensors that do not share storage with an argument."""
    inputs = {torchapi.storage_key(leaf) for leaf in torchapi.tensors_in((args, dict(kwargs)))} - {None}
    return [leaf for leaf in torchapi.tensors_in(outputs) if torchapi.storage_key(leaf) not in inputs]
