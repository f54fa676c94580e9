"""What a line of a generated program may be: one template for each form, with holes for values and numbers.

    {x} any tensor        {n} a number, no bool   {f} a float      {i} an integer       {b} a bool
    {m} a float matrix    {v} four float dims     {w} a tensor that may be written      {y} what goes with the first
    {dim} a dimension     {size} an index into it {k} a small number, {p} a positive one {s} a Python scalar
    {dtype} {flag} {slice} {shape} {reshape} {order} speak for themselves

What may not be written, because elements share a place, is not scattered into either: eager keeps the strides of what
it copies, and writes into the next window. Operations on lists of tensors have no names but those that begin with
`_foreach`: they are text of programs here.
A line that eager refuses is thrown away; what eager leaves undefined is named in `UNDEFINED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchparity.hunting.layers import LAYERS, lines

VIEWS = lines("""
    {x}[{slice}]
    {x}[..., {slice}]
    {x}[None]
    {x}.flip({dim})
    {x}.transpose({dim}, {dim})
    {x}.permute({order})
    {x}.unsqueeze({dim})
    {x}.squeeze({dim})
    {x}.squeeze()
    {x}.select({dim}, {size})
    {x}.narrow({dim}, {size}, 1)
    {x}.expand({p}, *{x0}.shape)
    {x}.reshape({reshape})
    {x}.reshape(-1)
    {x}.flatten({dim}, {dim})
    {x}.unfold({dim}, {p}, {p})
    {x}.diagonal({k}, {dim}, {dim})
    {x}.as_strided({shape}, {strides}, {k})
    {x}.movedim({dim}, {dim})
    {x}.view_as({x0})
    {x}.detach()
    {x}.contiguous()
    {x}.t()
    {x}.mT
    {x}.split({p}, {dim})[0]
    {x}.chunk({p}, {dim})[-1]
    {x}.unbind({dim})[0]
    {x}.tensor_split({p}, {dim})[-1]
    {f}.view(torch.int16)
    {i}.view(torch.uint8)
    {x}.repeat_interleave({p}, {dim})
    {x}.repeat({p}, *[1] * {x0}.dim())
    {x}.roll({k}, {dim})
    {x}.rot90({k}, ({dim}, {dim}))
    {x}.tile({p})
""")

POINTWISE = lines("""
    {x} + {y}
    {n} - {y}
    {x} * {y}
    {n} * {s}
    {s} - {n}
    {n} + {s}
    {f} / {s}
    {n} / {p}
    {n} // {p}
    {n} // {s}
    {n} % {p}
    {n} % {s}
    {s} % {n}
    {n} // {n}
    {n} % {n}
    torch.fmod({n}, {p})
    torch.div({n}, {p}, rounding_mode="trunc")
    torch.div({n}, {s}, rounding_mode="floor")
    {n} ** 2
    {n} ** {p}
    {p} ** {i}.clamp(0, 3)
    -{n}
    {n}.abs()
    {n}.sign()
    {n}.clamp({k}, {k})
    {n}.clamp(min={k})
    torch.maximum({x}, {y})
    torch.minimum({x}, {y})
    torch.where({b}, {n}, {s})
    torch.where({b}, {x}, {y})
    torch.where({n} > {s}, {x}, {y})
    {x} == {y}
    {n} > {s}
    {n} <= {y}
    {x} != {y}
    {b} & {y}
    {b} | {y}
    ~{b}
    {i} & {p}
    {i} | {k}
    {i} ^ {p}
    ~{i}
    {i} << {p}
    {i} >> {p}
    torch.bitwise_left_shift({i}, {p})
    {x}.logical_not()
    torch.logical_xor({x}, {y})
    {x}.masked_fill({b}, {s})
    torch.lerp({f}, {y}, 0.5)
    torch.addcmul({f}, {y}, {y}, value={k})
    torch.add({x}, {y}, alpha={k})
    torch.sub({n}, {y}, alpha={p})
    torch.rsub({n}, {s})
    torch.heaviside({f}, {y})
    torch.copysign({f}, {s})
    torch.hypot({f}, {y})
    torch.ldexp({f}, {p})
    torch.frac({f})
    torch.floor({f} * 0.5)
    torch.ceil({f} * 0.5)
    torch.round({f} * 0.5)
    torch.round({f} * 0.25, decimals={p})
    torch.trunc({f} * 0.75)
    torch.nan_to_num({f})
    torch.float_power({n}, 2)
    torch.gcd({i}, {y})
    torch.isin({n}, {y})
    torch.isclose({f}, {y})
    {n}.square()
    {n}.positive()
    {n}.real
    {x}.signbit()
    {n}.sgn()
    torch.square({n}).sqrt()
    torch.exp(-{f}.abs())
    torch.sin({f})
    torch.tanh({f})
    torch.sigmoid({f})
    torch.log1p({f}.abs())
    torch.atan2({f}, {y})
    torch.erf({f})
    torch.sinc({f})
    torch.logit({f} * 0.0 + 0.25)
    torch.xlogy({n}.abs(), {n}.abs() + 1)
    torch.rsqrt({f}.abs() + 1)
    torch.special.entr({f}.abs() * 0.125)
    torch.digamma({f}.abs() + 1)
    torch.lgamma({f}.abs() + 1)
    torch.nextafter({f}, {y})
    torch.fmax({f}, {y})
    torch.fmin({f}, {y})
    torch.polar({f}.abs(), {f0})
    torch.complex({f}, {f0}).imag
    torch.complex({f}, {f0}).abs()
    torch.view_as_real(torch.complex({f}, {f0}) * 2)
    torch.complex({f}, {f0}).conj().imag
    {x}.to({dtype})
    {x}.to({dtype}).to({dtype})
    {x}.float()
    {x}.int()
    {x}.bool()
    {x}.type_as({y})
    torch.as_tensor({s}) + {n}
    torch.tensor({s}) * {n}
    {n} + torch.tensor({s}, dtype={dtype})
    {n}.clone()
    {x}.clone(memory_format=torch.contiguous_format)
    torch.tril({x}, {k})
    torch.triu({x}, {k})
    torch.zeros({shape}).copy_({n})
""")

# Tensors whose numbers a compiler knows: it folds them, and has patterns and index arithmetic of its own for them.
CONSTANTS = lines("""
    torch.full_like({x}, {k})
    torch.full_like({n}, {p}, dtype={dtype})
    torch.full({shape}, {s})
    torch.full({shape}, {k}, dtype={dtype})
    torch.zeros_like({x}) + {y}
    torch.ones_like({x}, dtype={dtype})
    torch.arange({p}, {p} + 5, dtype={dtype})
    torch.arange({x}.shape[0])
    torch.linspace({k}, {p} + 4, 5)
    torch.eye({p}, {p})
    {n}.new_zeros({shape}) + {s}
    {x}.new_full({shape}, {s})
""")

REDUCTIONS = lines("""
    {x}.sum()
    {x}.sum({dim})
    {x}.sum({dim}, keepdim={flag})
    {x}.sum({dim}, dtype={dtype})
    {x}.sum(({dim}, {dim}))
    {f}.mean()
    {f}.mean({dim}, keepdim={flag})
    {n}.prod()
    {n}.clamp(-2, 2).prod({dim})
    {x}.amax({dim})
    {x}.amin({dim})
    {x}.amax(({dim}, {dim}), keepdim={flag})
    {n}.max()
    {n}.min()
    {n}.max({dim})
    {n}.min({dim}).values
    {n}.aminmax()
    {n}.argmax()
    {n}.argmax({dim})
    {n}.argmin({dim}, keepdim={flag})
    {x}.any()
    {x}.any({dim})
    {x}.all({dim}, keepdim={flag})
    {x}.count_nonzero({dim})
    {x}.cumsum({dim})
    {n}.cumsum({dim}, dtype={dtype})
    {n}.clamp(-2, 2).cumprod({dim})
    {n}.cummax({dim}).values
    {n}.cummin({dim}).values
    {f}.logcumsumexp({dim})
    {f}.logsumexp({dim})
    {f}.var({dim}, correction={flag})
    {f}.std(correction=0)
    torch.var_mean({f}, {dim}, correction=0)
    {f}.norm()
    {f}.norm({p}, {dim})
    torch.linalg.vector_norm({f}, {k}, {dim})
    {n}.diff(dim={dim})
    {n}.sort({dim}, stable=True)
    {n}.sort({dim}, descending=True, stable=True)
    {n}.sort({dim}).values
    {n}.argsort({dim}, stable=True)
    {n}.topk(1, {dim}).values
    {n}.kthvalue(1, {dim}).values
    {w}.median({dim}).values
    {n}.mode({dim}).values
    {f}.nansum({dim})
    {f}.nanmean({dim})
    torch.trapezoid({f}, dim={dim})
    torch.bincount({i}.abs().reshape(-1) % 5)
    torch.histc({f}, 4, -8, 8)
    torch.unique({n})
    torch.unique_consecutive({n})
    {n}.quantile(0.5)
    torch.searchsorted(torch.arange(5).to({n}.dtype), {n0})
    torch.bucketize({n}, torch.arange(4).to({n0}.dtype))
    torch.trace({m})
    torch.cov({m})
    {x}.nonzero()
    {n}.renorm(2, {dim}, 1.0)
""")

INDEXING = lines("""
    {x}[{index}]
    {x}[:, {index}]
    {x}[{index}, {index}]
    {x}[{b}]
    {x}.index_select({dim}, {index})
    {x}.gather({dim}, torch.zeros_like({x0}, dtype=torch.int64))
    {x}.take({index})
    torch.take_along_dim({x}, {index}, None)
    {x}.masked_select({b})
    {x}.index_add({dim}, {index}, {x0}.index_select({dim0}, {index0}), alpha={k})
    {x}.index_fill({dim}, {index}, {s})
    {x}.index_copy({dim}, {index}, {x0}.index_select({dim0}, {index0}) * 2)
    {x}.index_put(({index},), {x0}[0] + {s})
    {x}.index_put(({index},), {x0}[0], accumulate=True)
    {x}.scatter({dim}, torch.zeros_like({x0}, dtype=torch.int64)[:1], {s})
    {x}.scatter_add({dim}, torch.zeros_like({x0}, dtype=torch.int64), {x0})
    {n}.scatter_reduce({dim}, torch.zeros_like({n0}, dtype=torch.int64), {n0}, "amax")
    {n}.scatter_reduce({dim}, torch.zeros_like({n0}, dtype=torch.int64), {n0}, "sum", include_self=False)
    {w}.select_scatter({w0}.select({dim}, 0) * 2, {dim0}, -1)
    {w}.slice_scatter({w0}.narrow({dim}, 0, 1), {dim0}, -1)
    {w}.diagonal_scatter({w0}.diagonal() + 1)
    {w}.as_strided_scatter({w0}.reshape(-1)[:1], (1,), (1,), {k})
    torch.nn.functional.one_hot({i}.abs() % 4, 4)
    torch.nn.functional.embedding({i}.abs() % {m}.shape[0], {m0})
    torch.cat([{x}, {x0}], {dim})
    torch.cat([{x}, {y}])
    torch.stack([{x}, {x0}], {dim})
    torch.stack(torch.broadcast_tensors({x}, {y}))
    torch.hstack([{x}, {x0}])
    torch.block_diag({m}, {m})
    torch.meshgrid({x}.reshape(-1), {y}.reshape(-1), indexing="ij")[0]
    torch.cartesian_prod({x}.reshape(-1)[:3], {x0}.reshape(-1)[:2])
    torch.combinations({x}.reshape(-1)[:4])
    torch.tril_indices({p}, {p})
    torch.kron({n}, {y})
""")

WRITES = lines("""
    {w}.add_({y})
    {w}.add_({s})
    {w}.mul_({y})
    {w}.sub_({k})
    {w}.copy_({y})
    {w}.fill_({k})
    {w}.zero_()
    {w}.neg_()
    {w}.clamp_({k}, {p})
    {w}.masked_fill_({b}, {k})
    {w}.index_fill_({dim}, {index}, {k})
    {w}.index_add_({dim}, {index}, {w0}.index_select({dim0}, {index0}).clone())
    {w}.scatter_({dim}, torch.zeros_like({w0}, dtype=torch.int64)[:1], {k})
    {w}.cumsum_({dim})
    {w}.tril_({k})
    {w}.transpose_({dim}, {dim})
    {w}.unsqueeze_({dim})
    {w}.squeeze_()
    {w}.t_()
    {w}.floor_divide_({p})
    {w}.remainder_({p})
    {w}.pow_(2)
    {w}.logical_not_()
    {w}.relu_()
    {w}.abs_()
    {w}.lerp_({y}, 0.5)
    {w}.addcmul_({y}, {y})
    {w}[{slice}] = {k}
    {w}[{slice}] += {s}
    {w}[{slice}] *= {k}
    {w}[..., {slice}] = {y}
    {w}[{index}] = {k}
    {w}[{b}] = {k}
    {w}[{slice}].add_({k})
    {w}.view(-1).add_({k})
    {w}.flatten()[{slice}].mul_({p})
    {w}.diagonal().add_({k})
    {w}.transpose(0, -1).add_({y})
    {w}.select({dim}, 0).copy_({w0}.select({dim0}, -1).clone())
    {w}.unfold({dim}, 1, {p}).add_({k})
    {w}.as_strided((1,), (1,), {k}).add_({p})
    {w}.resize_({w0}.shape)
    {w}.set_({y})
    {w}.data.add_({k})
    {w}.detach().mul_({p})
    torch._foreach_add_([{w}, {w0}.clone()], {k})
    torch._foreach_mul_([{w}], {p})
    torch.add({w}.detach(), {k}, out={w0})
    torch.nn.functional.relu({w}, inplace=True)
    torch.nn.functional.dropout({w}, 0.5, training=False).add_({k})
    {w}.index_put_(({index},), {w0}[0].clone() * 2, accumulate=True)
    {w}.fill_diagonal_({k})
    {w}.swapaxes_(0, -1)
""")

# Python around the tensors: breaks (Dynamo does not trace `print`), state that lives outside of the function.
PYTHON = lines("""
    print(end="")
    seen.append({x}.shape[0])
    seen.append({k})
    state["count"] = state.get("count", 0) + {p}
""")

# A feature of a program that is an operation with the dtype of its first operand.
PAIR = "with:"

TABLES: dict[str, tuple[str, ...]] = {
    "view": VIEWS, "pointwise": POINTWISE, "constant": CONSTANTS, "reduction": REDUCTIONS, "indexing": INDEXING,
    "write": WRITES, "layer": LAYERS, "python": PYTHON,
}  # fmt: skip

# Results that eager itself does not define, or that a rounding decides: thrown away, with the reason counted.
UNDEFINED = {
    "out of range": "a cast of a value that the dtype cannot hold",
    "not finite": "Inf or NaN, which are asked for by themselves",
    "unwritten": "a view that reaches behind a result: eager may have memory there that nobody has written",
    "too large": "values so large that nothing stays exact",
    "refused": "eager raises",
    "no gradient": "eager cannot go backwards through it: it is judged without gradients",
}


@dataclass(frozen=True, kw_only=True)
class Template:
    """One form of a line: its table, its text."""

    table: str
    text: str

    @property
    def name(self) -> str:
        """What it is called in counts: the function or the sign in its middle."""
        found = re.search(r"(?:torch(?:\.\w+)*\.|\}\.)(\w+)", self.text)
        return f"{self.table}:{found[1] if found else self.text}"


TEMPLATES = tuple(Template(table=table, text=text) for table, texts in TABLES.items() for text in texts)
