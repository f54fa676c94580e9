"""What the oracle knows of operators: facts from the schema, and the few that the schema does not tell."""

import pytest
import torch

from torchparity import torchapi
from torchparity.run.operators import CONTRACTIONS, DECIDES, EXACT, KINKED, OPAQUE, float_tensors, terms, traits_of

aten = torch.ops.aten


@pytest.mark.parametrize("operator", [aten.view.default, aten.transpose.int, aten.select.int, aten.detach.default])
def test_views(operator):
    assert traits_of(operator).view


@pytest.mark.parametrize(
    "operator",
    [
        aten.rand.default,
        aten.bernoulli.default,
        aten.normal_.default,
        aten.native_dropout.default,
        aten.multinomial.default,
    ],
)
def test_random_operators(operator):
    assert traits_of(operator).random


@pytest.mark.parametrize(
    ("operator", "replayed"),
    [
        (aten.bernoulli.p, True),
        (aten.bernoulli_.float, True),
        (aten.multinomial.default, True),
        (aten.rand.default, False),
    ],
)
def test_draws_that_depend_on_a_float_are_replayed(operator, replayed):
    assert traits_of(operator).replayed is replayed


@pytest.mark.parametrize(
    ("operator", "exact"),
    [
        (aten.relu.default, True),
        (aten.relu_.default, True),
        (aten.cat.default, True),
        (aten.clamp_.default, True),
        (aten.where.self, True),
        (aten.neg.default, True),
        (aten.add.Tensor, False),
        (aten.add_.Tensor, False),
        (aten.exp.default, False),
        (aten.mm.default, False),
        (aten.sum.default, False),
        (aten.index_add.default, False),
        (aten.cumsum.default, False),
    ],
)
def test_operators_that_move_or_choose_are_exact(operator, exact):
    assert traits_of(operator).exact is exact


@pytest.mark.parametrize(
    ("operator", "written"),
    [
        (aten.add.Tensor, ()),
        (aten.add_.Tensor, (0,)),
        (aten.add.out, ("out",)),
        (aten.native_batch_norm.default, (3, 4)),
        (aten._native_batch_norm_legit.default, (3, 4)),
        (aten._foreach_add_.List, (0,)),
        (aten.copy_.default, (0,)),
    ],
)
def test_what_an_operator_writes_to(operator, written):
    assert traits_of(operator).written == written


def test_decisions_kinks_and_opaque_kernels():
    assert traits_of(aten.floor.default).decides
    assert traits_of(aten.floor_.default).decides
    assert not traits_of(aten.relu.default).decides
    assert traits_of(aten.threshold_backward.default).kinked
    assert traits_of(aten.mkldnn_rnn_layer.default).opaque
    assert traits_of(aten.native_batch_norm.default).by_channel
    assert traits_of(aten._softmax.default).normalised
    assert not traits_of(aten.mm.default).normalised


@pytest.mark.parametrize("name", sorted(DECIDES - {"fix"}))  # `fix` is taken apart into `trunc`.
def test_every_operator_that_decides_is_one_in_place_too(name):
    in_place = f"{name}_"
    if not name.endswith("_") and hasattr(aten, in_place):
        overload = getattr(aten, in_place)
        assert traits_of(getattr(overload, overload.overloads()[0])).decides


@pytest.mark.parametrize("name", sorted(KINKED | OPAQUE | set(CONTRACTIONS)))
def test_every_name_is_an_operator_of_this_torch(name):
    assert hasattr(aten, name)


def test_an_exact_name_that_rounds_would_be_wrong():
    """Of the names that are called exact, none that works on floats may give another float than its float64 form."""
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    checked = 0
    for name in sorted(EXACT):
        if not hasattr(aten, name) or "default" not in getattr(aten, name).overloads():
            continue
        operator = aten_default(name)
        arguments = operator._schema.arguments
        required = [argument for argument in arguments if not argument.has_default_value()]
        if len(required) != 1 or str(required[0].type) != "Tensor" or torchapi.is_random(operator):
            continue
        if name.endswith("_") or name.startswith("empty") or str(operator._schema.returns[0].type) != "Tensor":
            continue
        try:
            single, double = operator(values), operator(values.double())
        except (RuntimeError, NotImplementedError, IndexError):
            continue
        if not isinstance(single, torch.Tensor) or not single.is_floating_point():
            continue
        if single.layout == torch.strided:
            checked += 1
            assert torch.equal(single.double(), double), name
    assert checked > 15


def aten_default(name):
    return getattr(aten, name).default


# --- terms ---------------------------------------------------------------------------------------


def test_the_terms_of_a_matrix_product_are_its_inner_size():
    left, right = torch.ones(8, 32), torch.ones(32, 4)
    assert terms(traits_of(aten.mm.default), [left, right], left @ right) == pytest.approx(32)


def test_the_terms_of_a_sum_are_what_is_added():
    values = torch.ones(6, 100)
    assert terms(traits_of(aten.sum.dim_IntList), [values], values.sum(1)) == 100
    assert terms(traits_of(aten.add.Tensor), [values, values], values) == 1
    assert terms(traits_of(aten._softmax.default), [values], values) == 100


def test_nothing_in_or_out_is_one_term():
    assert terms(traits_of(aten.sum.default), [], torch.ones(1)) == 1
    assert terms(traits_of(aten.sum.default), [torch.ones(3)], torch.ones(0)) == 1


def test_float_tensors_of_a_tree():
    half, whole, compound = torch.ones(1).half(), torch.ones(1, dtype=torch.long), torch.ones(1, dtype=torch.complex64)
    assert [id(tensor) for tensor in float_tensors(([half, whole], {"x": compound}, 3, None))] == [
        id(half),
        id(compound),
    ]
