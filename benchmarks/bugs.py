"""Real bugs of the installed PyTorch (2.13.0, CPU), each inside a model of more than 200 nodes.

None of them is planted. `python -m benchmarks.bugs [name ...]` shows that each of them still fails, by itself and in
its model, in a process of its own; the pool is torchparity's, so that a segmentation fault is an answer as well.
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

import torchparity
from torchparity import Status, Verdict
from torchparity.judge.isolated import Announce, answer, judge_elsewhere
from torchparity.records import ProgressCallback
from torchparity.workers.outcome import Limits
from torchparity.workers.pool import Pool

BATCH, LENGTH, WIDTH = 4, 8, 32
BLOCKS = 4
JOB = "benchmarks.bugs:bug_job"
SECONDS = 600.0

Pair = tuple[torch.Tensor, torch.Tensor]
Operation = Callable[[torch.Tensor], torch.Tensor | Pair]
Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


class Mixer(nn.Module):
    """A residual block of two dozen operations: a shift along the sequence, a gated MLP, a norm by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.rand(width))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = torch.cat([x[:, 1:], x[:, :1]], 1)
        mixed = x * self.share + shifted * (1 - self.share)
        value, gate = self.up(self.norm(mixed)).chunk(2, -1)
        hidden = F.silu(gate) * torch.tanh(value)
        centred = hidden - hidden.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        change: torch.Tensor = 0.5 * self.down(scaled)
        return x + change


class Around(nn.Module):
    """An operation on the stream between blocks; what it returns is added to the stream.

    Of two tensors, the first is added to the stream and the second is returned beside it.
    """

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.before = nn.ModuleList(Mixer(WIDTH) for _ in range(BLOCKS))
        self.after = nn.ModuleList(Mixer(WIDTH) for _ in range(BLOCKS))
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor | Pair:
        for block in self.before:
            x = block(x)
        found = self.operation(x)
        added = found[0] if isinstance(found, tuple) else found
        x = x + added.to(x.dtype)
        for block in self.after:
            x = block(x)
        return (x, found[1]) if isinstance(found, tuple) else x


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One bug: an operation on a float tensor (batch, length, width) that is wrong once compiled.

    `number` is the thread of pytorch/pytorch, None where none was found; `kind` is what torchparity calls the
    difference in the model, `also` what else that may be on another machine, `alone_kind` what it calls that of the
    operation by itself, where the two are not the same; `source` is where it comes from, as a file of torch and a
    function.
    """

    number: int | None
    name: str
    title: str
    kind: str
    stage: str
    source: str
    operation: Operation
    also: tuple[str, ...] = ()
    alone_kind: str = ""
    train: bool = False

    def make(self) -> Made:
        """Return the model of more than 200 nodes and its arguments, the same every time."""
        torch.manual_seed(0)
        return Around(self.operation), (torch.randn(BATCH, LENGTH, WIDTH),)

    def alone(self) -> Made:
        """Return the operation by itself and an argument for it, the same every time."""
        torch.manual_seed(0)
        return self.operation, (torch.randn(1, 2, WIDTH),)


# --- integers and dtypes -------------------------------------------------------------------------


def arange_times(h: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(h.shape[-1]) * 1_000_000_000
    return torch.where(h > 0, steps, 0) // 100_000_000


def any_of_bytes(h: torch.Tensor) -> torch.Tensor:
    return torch.any((h > 0).to(torch.uint8), -1, keepdim=True) * 200 + 100


def typed_cumsum(h: torch.Tensor) -> torch.Tensor:
    return torch.full_like(h, 60, dtype=torch.int8).cumsum(-1, dtype=torch.int8)


# --- vectorised code -----------------------------------------------------------------------------


def least_byte(h: torch.Tensor) -> torch.Tensor:
    return (h.abs() * 8 + 3).to(torch.uint8).amin(-1, keepdim=True)


def greatest_negative(h: torch.Tensor) -> torch.Tensor:
    return (-8 * h.abs() - 3).to(torch.int8).argmax(-1, keepdim=True)


def remainder_of_infinity(h: torch.Tensor) -> torch.Tensor:
    return torch.remainder(h.abs(), math.inf)


# --- passes and lowerings ------------------------------------------------------------------------


def times_zero(h: torch.Tensor) -> torch.Tensor:
    return torch.isnan(torch.log(h) * 0).to(h.dtype)


def floor_division(h: torch.Tensor) -> torch.Tensor:
    return torch.round(h.detach() * 4) // 0.1  # It has no derivative, which would be another failure.


def strided_inside(h: torch.Tensor) -> torch.Tensor:
    doubled = h * 2
    return torch.as_strided(doubled[..., ::2], (h.shape[-1] // 2,), (1,)).repeat(2)


def strided_outside(h: torch.Tensor) -> torch.Tensor:
    tall = h.reshape(-1, h.shape[-1])[:1].repeat(1 << 18, 1) * 2
    return torch.as_strided(tall[:, ::2], tall.shape, tall.stride()).mean(0)


# --- decompositions ------------------------------------------------------------------------------


def padded_labels(h: torch.Tensor) -> torch.Tensor:
    rows = h.reshape(-1, h.shape[-1])
    labels = rows.argsort(-1)
    labels = torch.where(torch.arange(h.shape[-1]) < 3, labels, -1)
    return F.multilabel_margin_loss(rows, labels, reduction="none").view(*h.shape[:-1], 1)


# --- in-place and views --------------------------------------------------------------------------


def through_gaps(h: torch.Tensor) -> torch.Tensor:
    base = h * 2
    base.unfold(-1, 1, 5).add_(1)
    return base


def through_dropout(h: torch.Tensor) -> torch.Tensor:
    base = h * 2
    F.dropout(base, 0.5, training=False).add_(1)
    return base


# --- backward ------------------------------------------------------------------------------------


def hinge_tie(h: torch.Tensor) -> torch.Tensor:
    mean = h.mean(-1).reshape(-1, 1)
    scores = torch.cat([mean, mean.detach(), mean.detach()], 1)
    loss = F.multi_margin_loss(scores, torch.zeros(len(scores), dtype=torch.int64), margin=0.0, reduction="none")
    return h * 0.5 + loss.view(*h.shape[:-1], 1)


def overlapping_windows(h: torch.Tensor) -> Pair:
    windows = (h * 2).unfold(-1, 3, 2)
    return windows.mean((-1, -2)).unsqueeze(-1), windows


# --- compile errors ------------------------------------------------------------------------------


def scalar_cumsum(h: torch.Tensor) -> torch.Tensor:
    return torch.full_like(h.sum(), 0.5).cumsum(0)


def pool_of_nothing(h: torch.Tensor) -> torch.Tensor:
    image = h.unsqueeze(1)
    samples = torch.full((len(h), 1, 2), 0.5)
    return F.fractional_max_pool2d(image, 0, output_size=(1, 1), _random_samples=samples).view(-1, 1, 1)


def nan_constant(h: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(torch.full_like(h[..., :2], math.nan).amax(-1, keepdim=True))


def sum_as_bool(h: torch.Tensor) -> torch.Tensor:
    return torch.round(h[..., :20] * 4).to(torch.int64).sum(-1, keepdim=True, dtype=torch.bool)


# --- checks that are lost ------------------------------------------------------------------------


def target_above_one(h: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy(torch.sigmoid(h), torch.sigmoid(h) + 1)


def column_plus_scalar(h: torch.Tensor) -> torch.Tensor:
    row = h.reshape(-1, h.shape[-1])[:1]
    return torch.addmm(h.reshape(-1, 1)[: h.shape[-1]], row, row.t()).view(-1)


def negative_beta(h: torch.Tensor) -> torch.Tensor:
    return F.smooth_l1_loss(h, h * 2, beta=-1.0)


# --- Dynamo --------------------------------------------------------------------------------------


def scaled_quotient(h: torch.Tensor) -> torch.Tensor:
    return torch.addcdiv(h, h * 1e28, torch.full_like(h, 1e-14), value=1e-37) * 1e-5


def full_of_flag(h: torch.Tensor) -> torch.Tensor:
    flag: Any = (h > 0).any()
    flags = torch.full(h.shape, flag)
    return flags + flags


BUGS: tuple[Bug, ...] = (
    Bug(
        number=175966, name="arange-times", title="arange times a large integer wraps at 32 bits",
        kind="value", alone_kind="integer", stage="lowering",
        source="_inductor/index_propagation.py", operation=arange_times,
    ),
    Bug(
        number=198081, name="any-of-bytes", title="any() of uint8 is bool, so arithmetic on it no longer wraps",
        kind="value", alone_kind="dtype", stage="lowering",
        source="_inductor/lowering.py reduce_any", operation=any_of_bytes,
    ),
    Bug(
        number=189518, name="typed-cumsum", title="cumsum of a constant forgets dtype=",
        kind="value", alone_kind="dtype", stage="post-grad pass",
        source="_inductor/fx_passes/post_grad.py pointless_cumsum_replacement", operation=typed_cumsum,
    ),
    Bug(
        number=191543, name="least-byte", title="amin of uint8 sees zeros in the idle lanes of the vector",
        kind="value", alone_kind="integer", stage="codegen",
        source="_inductor/codegen/cpp.py CppVecKernel.reduction", operation=least_byte,
    ),
    Bug(
        number=191543, name="greatest-negative", title="argmax of int8 sees zeros in the idle lanes of the vector",
        kind="value", alone_kind="integer", stage="codegen",
        source="csrc/inductor/cpp_prefix.h argmax_vec_reduce_all", operation=greatest_negative,
    ),
    Bug(
        number=198057, name="remainder-of-infinity", title="remainder by infinity is NaN where it is vectorised",
        kind="nonfinite", stage="codegen",
        source="_inductor/codegen/cpp.py CppVecOverrides.remainder", operation=remainder_of_infinity,
    ),
    Bug(
        number=186281, name="times-zero", title="NaN times 0 is 0",
        kind="value", stage="joint-graph pass",
        source="_inductor/fx_passes/joint_graph.py UniformValueConstantFolder._add_peephole_patterns",
        operation=times_zero,
    ),
    Bug(
        number=197895, name="floor-division", title="1.0 // 0.1 is 10",
        kind="value", stage="lowering",
        source="_inductor/lowering.py div_mode", operation=floor_division,
    ),
    Bug(
        number=197431, name="strided-inside", title="as_strided of a slice reads a copy of the slice",
        kind="value", stage="lowering",
        source="_inductor/ir.py ExternKernel.require_strides", operation=strided_inside,
    ),
    Bug(
        number=197431, name="strided-outside", title="as_strided of a slice reads megabytes behind a copy of the slice",
        kind="crashes", also=("value", "nonfinite"), stage="lowering",
        source="_inductor/ir.py ExternKernel.require_strides", operation=strided_outside,
    ),
    Bug(
        number=141017, name="padded-labels", title="multilabel_margin_loss counts labels after the first -1",
        kind="value", stage="decomposition",
        source="_decomp/decompositions.py multilabel_margin_loss_forward", operation=padded_labels,
    ),
    Bug(
        number=198102, name="through-gaps", title="an in-place op on an unfold with gaps zeroes what lies between",
        kind="value", stage="functionalization",
        source="ATen/FunctionalInverses.cpp unfold_inverse", operation=through_gaps,
    ),
    Bug(
        number=195422, name="through-dropout", title="an in-place op on what dropout returned unchanged is lost",
        kind="value", stage="decomposition",
        source="_decomp/decompositions.py dropout", operation=through_dropout,
    ),
    Bug(
        number=None, name="hinge-tie", title="multi_margin_loss has a gradient where the hinge is exactly zero",
        kind="value", stage="decomposition, backward",
        source="_decomp/decompositions.py multi_margin_loss", operation=hinge_tie, train=True,
    ),
    Bug(
        number=None, name="overlapping-windows", title="the gradient of an output that overlaps itself is overwritten",
        kind="value", stage="AOTAutograd, backward",
        source="_functorch/_aot_autograd/runtime_wrappers.py coerce_to_expected_memory_format",
        operation=overlapping_windows, train=True,
    ),
    Bug(
        number=193265, name="scalar-cumsum", title="cumsum of a constant without dimensions: IndexError",
        kind="raises", stage="post-grad pass",
        source="_inductor/fx_passes/post_grad.py pointless_cumsum_replacement", operation=scalar_cumsum,
    ),
    Bug(
        number=188218, name="pool-of-nothing", title="fractional_max_pool2d with an empty window: AssertionError",
        kind="raises", stage="lowering",
        source="_inductor/lowering.py _fractional_max_pool", operation=pool_of_nothing,
    ),
    Bug(
        number=188225, name="nan-constant", title="maximum of a NaN constant: not comparable",
        kind="raises", stage="lowering",
        source="_inductor/index_propagation.py maximum", operation=nan_constant,
    ),
    Bug(
        number=197106, name="sum-as-bool", title="sum(dtype=bool) of integers: C++ compile error",
        kind="raises", stage="codegen",
        source="csrc/inductor/cpp_prefix.h sum_masked_reduce", operation=sum_as_bool,
    ),
    Bug(
        number=193757, name="target-above-one", title="binary_cross_entropy takes targets outside of 0..1",
        kind="accepts_invalid", stage="decomposition",
        source="_decomp/decompositions.py binary_cross_entropy", operation=target_above_one,
    ),
    Bug(
        number=195579, name="column-plus-scalar", title="addmm broadcasts its product to a larger input",
        kind="accepts_invalid", stage="decomposition",
        source="_decomp/decompositions.py addmm", operation=column_plus_scalar,
    ),
    Bug(
        number=194501, name="negative-beta", title="smooth_l1_loss takes a negative beta",
        kind="accepts_invalid", stage="decomposition",
        source="_decomp/decompositions.py smooth_l1_loss", operation=negative_beta,
    ),
    Bug(
        number=None, name="scaled-quotient", title="addcdiv divides before it scales, and overflows",
        kind="nonfinite", stage="dynamo",
        source="_dynamo/variables/torch.py handle_addcdiv", operation=scaled_quotient,
    ),
    Bug(
        number=None, name="full-of-flag", title="full() of a bool tensor is float32, so that true and true is 2",
        kind="value", alone_kind="dtype", stage="dynamo",
        source="_dynamo/variables/torch.py handle_full", operation=full_of_flag,
    ),
)  # fmt: skip
BY_NAME = {bug.name: bug for bug in BUGS}


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a check said: its status, the kinds of difference, and the time it took."""

    status: str
    kinds: tuple[str, ...]
    seconds: float


def judge(name: str, where: str, backend: str, progress: ProgressCallback | None = None) -> Verdict:
    """Check a bug in this process; `where` is "alone" or "model"."""
    bug = BY_NAME[name]
    model, arguments = bug.alone() if where == "alone" else bug.make()
    return torchparity.check(model, arguments, backend=backend, train=bug.train, progress=progress)


def bug_job(payload: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """Check a bug inside a worker."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    return answer(lambda tell: judge(payload["name"], payload["where"], payload["backend"], tell), announce)


def see(bug: Bug, where: str, backend: str, pool: Pool) -> Seen:
    """Check a bug in a process of its own."""
    payload = {"name": bug.name, "where": where, "backend": backend}
    verdict = judge_elsewhere(pool, JOB, payload, subject=bug.name, backend=backend, limits=Limits(seconds=SECONDS))
    return Seen(status=verdict.status.value, kinds=kinds_of(verdict), seconds=verdict.seconds)


def kinds_of(verdict: Verdict) -> tuple[str, ...]:
    """Return the kinds of difference in a verdict, the first mismatch first."""
    if verdict.status is not Status.DIFFERS:
        return ()
    failure = verdict.failure
    if failure is not None:
        return (failure.stage if failure.stage in ("crashes", "accepts_invalid") else "raises",)
    return tuple(dict.fromkeys(mismatch.kind.value for leaf in verdict.leaves for mismatch in leaf.mismatches))


def nodes_of(bug: Bug) -> int:
    """Count the operations of the graphs that Dynamo makes of the model: no inputs, no outputs."""
    counts: list[int] = []

    def count(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        counts.append(sum(node.op in ("call_function", "call_method") for node in graph_module.graph.nodes))
        return graph_module.forward

    model, arguments = bug.make()
    try:
        torch.compile(model, backend=count)(*arguments)
    except RuntimeError:  # A model that eager refuses to run is still traced.
        if not counts:
            raise
    finally:
        torch.compiler.reset()
    return sum(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(BY_NAME))
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"there is no bug named {', '.join(unknown)}")
    warnings.filterwarnings("ignore")
    console = Console(width=150)
    table = Table("thread", "name", "stage", "alone", "model", "nodes", "seconds", title=f"bugs, {options.backend}")
    wrong = []
    with Pool(workers=1, preload=("torchparity.verbs.jobs",)) as pool:
        for bug in BUGS:
            if options.names and bug.name not in options.names:
                continue
            alone, model = (see(bug, where, options.backend, pool) for where in ("alone", "model"))
            nodes, seconds = nodes_of(bug), f"{alone.seconds:.0f} + {model.seconds:.0f}"
            told = [", ".join(seen.kinds) or seen.status for seen in (alone, model)]
            table.add_row(str(bug.number or ""), bug.name, bug.stage, *told, str(nodes), seconds)
            as_stated = bool({bug.kind, *bug.also} & set(model.kinds)) and nodes >= 200
            as_stated &= bool({bug.alone_kind or bug.kind, *bug.also} & set(alone.kinds))
            console.print(f"  {bug.name}: {told[0]}; {told[1]}; {nodes} nodes, {seconds} s", highlight=False)
            if not as_stated:
                wrong.append(bug.name)
    console.print(table)
    if wrong:
        raise SystemExit(f"not as stated: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
