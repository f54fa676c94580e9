"""What the oracle knows of each ATen operator: what it writes, whether it rounds, whether it decides."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from torchparity import torchapi

# Operators whose result any correct implementation gives bit for bit: they move, choose or fill.
EXACT = frozenset(
    """
    abs absolute alias amax amin arange aminmax argmax argmin argsort as_strided_copy as_strided_scatter
    bitwise_and bitwise_not bitwise_or bitwise_xor block_diag bucketize cat ceil clamp clamp_max
    clamp_min clone col2im_copy complex conj_physical constant_pad_nd contiguous copy copy_ cummax
    cummin detach_copy diag diag_embed diagonal_copy diagonal_scatter embedding empty empty_like
    empty_strided eq equal expand_copy eye fill fill_ flip floor fmax fmin full full_like gather ge
    glu_copy gt hardtanh heaviside im2col index index_copy index_copy_ index_fill index_fill_
    index_put_copy index_select isfinite isinf isnan isin kthvalue le lift_fresh_copy logical_and
    logical_not logical_or logical_xor lt masked_fill masked_fill_ masked_scatter masked_select max
    max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d
    fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d maximum median min minimum
    mode nan_to_num nanmedian narrow_copy ne neg negative new_empty new_empty_strided new_full
    new_ones new_zeros nonzero one_hot ones ones_like permute_copy pixel_shuffle pixel_unshuffle
    positive randperm reflection_pad1d reflection_pad2d reflection_pad3d relu relu_ repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d resize_ roll rot90 round
    rsub_copy scalar_tensor scatter_copy searchsorted select_backward select_copy select_scatter
    sgn sign signbit slice_backward slice_copy slice_scatter sort split_copy split_with_sizes_copy
    squeeze_copy stack t_copy take threshold to_sparse _to_sparse to_dense _to_dense topk transpose_copy tril
    tril_indices triu triu_indices trunc unbind_copy unfold_copy unique_consecutive unique_dim
    _unique2 unsafe_split unsqueeze_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d view_as_complex_copy view_as_real_copy
    view_copy where zero zero_ zeros zeros_like _local_scalar_dense _unsafe_view _pin_memory
    _sparse_coo_tensor_with_dims_and_tensors _coalesce channel_shuffle _reshape_copy
    _foreach_copy_ _foreach_zero_ _foreach_abs _foreach_neg _foreach_maximum _foreach_clamp_min
    bernoulli bernoulli_ threshold_backward trace_copy _nested_tensor_from_mask all_gather_copy_in chunk_cat
    """.split()
)
# Operators that turn a continuous value into a discrete float: the reference takes eager's decision.
DECIDES = frozenset(
    """
    floor ceil round trunc sign sgn heaviside heaviside_ floor_divide fmod remainder frac bernoulli bernoulli_
    floor_ ceil_ round_ trunc_ sign_ sgn_ floor_divide_ fmod_ remainder_ frac_ fix histc
    """.split()
)
# Derivatives that are constant on each side of a kink: the reference stands on eager's side of it.
KINKED = frozenset("threshold_backward leaky_relu_backward hardtanh_backward".split())
# Random operators whose outcome depends on a float value: replayed, not drawn again.
REPLAYED = frozenset("bernoulli multinomial poisson binomial _standard_gamma _sample_dirichlet".split())
# Operators whose integers are indices, and whether the first of equal values is what they must choose.
CHOOSES = {
    **dict.fromkeys("argmax argmin max min".split(), True),
    **dict.fromkeys("topk sort argsort kthvalue median nanmedian mode cummax cummin".split(), False),
    **dict.fromkeys("searchsorted bucketize nonzero multinomial randperm _unique2 unique_consecutive".split(), False),
    **dict.fromkeys("max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d".split(), False),
}
# Operators that hand integers on as they are.
HANDS_ON = frozenset("_to_copy clone detach alias lift_fresh contiguous".split())
# Operators whose result is whatever was in memory.
ALLOCATES = frozenset("empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split())
# Operators that write to arguments which their schema does not own up to (running statistics, FSDP2's buffer).
SILENT_WRITES = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
    "_batch_norm_impl_index": (3, 4),
    "all_gather_copy_in": (1,),
}
# Kernels that hand private state to their backward, or have no float64 form. The reference is run
# again with the plain kernels in their place.
OPAQUE = frozenset(
    """
    mkldnn_rnn_layer _cudnn_rnn miopen_rnn cudnn_batch_norm miopen_batch_norm
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable
    _flash_attention_forward _efficient_attention_forward _cudnn_attention_forward
    """.split()
)
CONTRACTIONS = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "convolution",
    "convolution_backward", "linear", "matmul", "_grouped_mm", "_scaled_mm", "_trilinear",
)  # fmt: skip
NORMALISED = ("softmax", "norm", "attention", "logsumexp", "renorm", "cross_entropy")


@dataclass(frozen=True)
class Traits:
    """The facts about one operator that the modes ask for at every call."""

    name: str
    view: bool
    random: bool
    exact: bool
    decides: bool
    kinked: bool
    replayed: bool
    opaque: bool
    contraction: bool
    normalised: bool
    by_channel: bool
    written: tuple[int | str, ...]


# Arguments with which an operation that is exact by itself rounds: `round(x, decimals=3)` scales and scales back.
ROUNDS_BY = ("decimals",)


@functools.cache
def traits_of(operator: torchapi.OpOverload) -> Traits:
    """Return the traits of an operator."""
    name = torchapi.target_name(operator)
    plain = name.removesuffix("_") if not name.startswith("__") else name
    random = torchapi.is_random(operator)
    written = torchapi.written_arguments(operator) or SILENT_WRITES.get(name, ())
    normalised = any(word in name for word in NORMALISED)
    return Traits(
        name=name,
        view=bool(operator.is_view),
        random=random,
        exact=(name in EXACT or plain in EXACT) and not torchapi.takes(operator, *ROUNDS_BY),
        decides=name in DECIDES,
        kinked=name in KINKED,
        replayed=random and plain in REPLAYED,
        opaque=name in OPAQUE,
        contraction=plain in CONTRACTIONS,
        normalised=normalised,
        by_channel="batch_norm" in name,
        written=tuple(written),
    )


def terms(traits: Traits, inputs: list[torch.Tensor], output: torch.Tensor) -> float:
    """Estimate how many terms are added up for one element of an output."""
    if not inputs or output.numel() == 0:
        return 1.0
    sizes = sorted((tensor.numel() for tensor in inputs), reverse=True)
    if traits.contraction and len(sizes) > 1:
        return max(1.0, math.sqrt(sizes[0] * sizes[1] / output.numel()))
    reduced = max(1.0, sizes[0] / output.numel())
    if not traits.normalised or reduced > 1.0:
        return reduced
    if traits.by_channel and output.dim() > 1:
        return output.numel() / output.shape[1]
    return float(max(max(tensor.shape, default=1) for tensor in inputs))


def poison(outputs: Any, *, finite: bool = False) -> int:
    """Fill tensors that nobody has written to yet with what nobody would write; return how many there are.

    Who reads them shows: in one run NaN and a large integer comes out, in another (`finite`) other numbers.
    """
    tensors = [leaf for leaf in torchapi.tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.numel()]
    tensors = [tensor for tensor in tensors if torchapi.in_memory(tensor)]
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.fill_(1.0 if finite else float("nan"))
        elif tensor.dtype != torch.bool:
            tensor.fill_(torch.iinfo(tensor.dtype).max // (5 if finite else 3))
    return len(tensors)


def poisoned(values: torch.Tensor) -> torch.Tensor:
    """Tell where a result shows what unwritten memory was filled with."""
    if values.is_floating_point() or values.is_complex():
        return values.isnan()
    if values.dtype == torch.bool:
        return torch.zeros_like(values)
    return values == torch.iinfo(values.dtype).max // 3


def float_tensors(tree: Any) -> list[torch.Tensor]:
    """Return the float and complex tensors of a pytree."""
    return [leaf for leaf in torchapi.tensors_in(tree) if leaf.is_floating_point() or leaf.is_complex()]
