"""Whatever tensors a graph is given: bundle, read, and the inputs are bit for bit the same, aliases included."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.repro.graphs import case_of, graph_of

from torchparity import torchapi
from torchparity.judge.script import write_bundle
from torchparity.repro.bundle import read_bundle
from torchparity.repro.opening import open_case as load_case
from torchparity.repro.values import literal

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.complex32,
    torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]  # fmt: skip


@st.composite
def storages(draw: Any) -> torch.Tensor:
    """Random bytes (booleans are zeros and ones), in some dtype."""
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.integers(0, 40))
    data = torch.tensor(list(draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))))
    data = data.to(torch.uint8) % 2 if dtype == torch.bool else data.to(torch.uint8)
    return data.view(dtype) if size else torch.empty(0, dtype=dtype)


@st.composite
def views(draw: Any, base: torch.Tensor) -> torch.Tensor:
    """A view of a storage: any shape, any non-negative strides that stay inside, any offset, any flags."""
    room = base.numel()
    offset = draw(st.integers(0, max(room - 1, 0)))
    shape, stride, last = [], [], offset
    for _ in range(draw(st.integers(0, 3))):
        step = draw(st.integers(0, 4))
        most = 4 if step == 0 else (room - 1 - last) // step + 1 if room else 0
        size = draw(st.integers(0, max(0, min(most, 5))))
        shape.append(size)
        stride.append(step)
        last += step * max(size - 1, 0)
    if room == 0:
        shape, stride = [*shape, 0], [*stride, 1]
    made = base.as_strided(shape, stride, offset)
    if base.is_complex() and base.dtype != torch.complex32 and draw(st.booleans()):
        made = made.conj()
    if (base.dtype in (torch.float32, torch.float64) or base.is_complex()) and draw(st.booleans()):
        made = torch._neg_view(made)
    if base.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex64):
        kind = draw(st.sampled_from(["plain", "gradient", "parameter", "frozen"]))
        if kind == "gradient":
            made = made.detach().requires_grad_()
        elif kind != "plain":
            made = torch.nn.Parameter(made.detach(), requires_grad=kind == "parameter")
    return made


@st.composite
def sparse(draw: Any) -> torch.Tensor:
    """A sparse tensor of any layout."""
    dense = torch.tensor(draw(st.lists(st.sampled_from([0.0, 0.0, 1.5, -2.0]), min_size=16, max_size=16))).view(4, 4)
    layout = draw(st.sampled_from(["coo", "loose", "hybrid", "csr", "csc", "bsr", "bsc"]))
    if layout == "loose":
        indices = torch.tensor([[0, 3, 0], [1, 2, 1]])
        return torch.sparse_coo_tensor(indices, dense[0, :3], (4, 4))
    if layout == "hybrid":
        return dense.to_sparse(1)
    if layout in ("bsr", "bsc"):
        return getattr(dense, f"to_sparse_{layout}")((2, 2))
    made = dense.to_sparse() if layout == "coo" else getattr(dense, f"to_sparse_{layout}")()
    return made.requires_grad_(draw(st.booleans()))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text(max_size=9)
plain = plain | st.binary(max_size=9) | st.sampled_from(DTYPES) | st.just(torch.device("cpu"))
literals = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
generators = st.integers(0, 99).map(lambda seed: torch.Generator().manual_seed(seed))


@st.composite
def inputs(draw: Any) -> list[Any]:
    """Inputs of a graph, several of which may look at one storage."""
    made: list[Any] = []
    for base in draw(st.lists(storages(), max_size=3)):
        made += [draw(views(base)) for _ in range(draw(st.integers(1, 3)))]
    made += draw(st.lists(sparse() | generators | literals, max_size=3))
    return draw(st.permutations(made))


def facts(value: Any) -> Any:
    """Return everything that can be told about a value, its bits included, but for where it lies."""
    if isinstance(value, torch.Generator):
        return "generator", str(value.device), value.get_state().numpy().tobytes()
    if not isinstance(value, torch.Tensor):
        return literal(value)
    kind = (type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad, str(value.layout))
    if value.layout == torch.strided:
        whole = value.untyped_storage()
        data = torch.empty(0, dtype=torch.uint8).set_(whole).numpy().tobytes()
        return kind, value.stride(), value.storage_offset(), value.is_conj(), value.is_neg(), whole.nbytes(), data
    inner = value.detach()
    if value.layout == torch.sparse_coo:
        return kind, value.is_coalesced(), facts(inner._indices()), facts(inner._values())
    first, second = ("crow", "col") if value.layout in (torch.sparse_csr, torch.sparse_bsr) else ("ccol", "row")
    parts = [getattr(inner, f"{name}_indices")() for name in (first, second)] + [inner.values()]
    return kind, [facts(part) for part in parts]


def aliases(values: list[Any]) -> list[tuple[int, int]]:
    """Return which values look at one storage."""
    places = [torchapi.storage_key(value) if isinstance(value, torch.Tensor) else None for value in values]
    return [
        (first, second)
        for first in range(len(values))
        for second in range(first)
        if places[first] is not None and places[first] == places[second]
    ]


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(inputs())
def test_inputs_survive_the_bundle_bit_for_bit(values):
    names = [f"x{number}" for number in range(len(values))]
    case = case_of(graph_of(lambda graph, *given: tuple(given), names), values)
    with tempfile.TemporaryDirectory() as place:
        folder = write_bundle(case, Path(place) / "case")
        read = read_bundle(folder)
        assert read.digest == case.digest
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Torch calls some dtypes and layouts experimental, once a process.
            model, rebuilt, _ = load_case(read, folder).make()
    assert [facts(value) for value in rebuilt] == [facts(value) for value in values]
    assert aliases(rebuilt) == aliases(values)
    returned = model(*rebuilt)
    assert all(left is right for left, right in zip(returned, rebuilt, strict=True))
