"""What a run is expected to give: facts first, numbers after, and every difference has its kind."""

import math

import numpy as np
import pytest
import torch

from torchparity.compare.expectation import Expectation, compare_all
from torchparity.compare.facts import aligned, tensor_of
from torchparity.compare.judgement import Tolerance
from torchparity.compare.leaves import Leaf
from torchparity.records import UNCHANGED, Kind, Status

TOLERANCE = Tolerance()


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaf(value, **facts):
    strides = None
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested:
        strides = value.stride()
    return Leaf(**{"path": "output", "role": "output", "value": value, "strides": strides, **facts})


def report(expected, actual, reference=None, samples=()):
    """Judge one leaf against another; plain values are made into output leaves."""
    left = expected if isinstance(expected, Leaf) else leaf(expected)
    right = actual if isinstance(actual, Leaf) else leaf(actual)
    expectation = Expectation(left, {"": reference} if reference is not None else None)
    for sample in samples:
        expectation.add(leaf(sample))
    return expectation.judge(right, TOLERANCE)


def kinds(found):
    return [mismatch.kind for mismatch in found.mismatches]


# --- numbers of any sort -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, torch.float64),
        (1 + 2j, torch.complex128),
        (3, torch.int64),
        (True, torch.bool),
        (np.float32(2), torch.float32),
        (np.arange(3), torch.int64),
        (np.zeros(2, dtype=np.complex64), torch.complex64),
        (torch.ones(2, dtype=torch.bfloat16), torch.bfloat16),
    ],
)
def test_numbers_become_tensors(value, dtype):
    assert tensor_of(value).dtype == dtype


@pytest.mark.parametrize("value", [None, "text", 2**80, np.array(["a"]), object(), torch.float32])
def test_what_is_not_a_number_has_no_tensor(value):
    assert tensor_of(value) is None


def test_a_tensor_is_taken_off_the_graph():
    assert not tensor_of(torch.ones(1, requires_grad=True)).requires_grad


@pytest.mark.parametrize("make", [lambda x: x[::-1], lambda x: x.astype(np.longdouble)], ids=["reversed", "longdouble"])
def test_an_odd_numpy_array_is_compared(make):
    values = np.arange(4.0)
    assert report(make(values), make(values)).status is Status.SAME
    assert report(make(values), make(values + 1)).status is Status.DIFFERS


@pytest.mark.parametrize(
    "value", [1.5, 7, True, 1 + 2j, 0.0, math.nan, math.inf, np.float32(3), np.ones(3), "text", None]
)
def test_a_value_is_the_same_as_itself(value):
    assert report(value, value).status is Status.SAME


@pytest.mark.parametrize(
    ("expected", "actual", "kind"),
    [
        (1.5, 1.6, Kind.VALUE),
        (1 + 2j, 1 + 2.5j, Kind.VALUE),
        (math.nan, 1.0, Kind.NONFINITE),
        (1.0, math.inf, Kind.NONFINITE),
        (7, 8, Kind.INTEGER),
        (True, False, Kind.INTEGER),
        (2**80, 2**80 + 1, Kind.OBJECT),
        ("text", "other", Kind.OBJECT),
        (torch.float32, torch.float64, Kind.OBJECT),
        (torch.device("cpu"), torch.device("meta"), Kind.OBJECT),
        (Status.SAME, Status.DIFFERS, Kind.OBJECT),
        (1, 1.0, Kind.STRUCTURE),
        (1, True, Kind.STRUCTURE),
        (None, torch.ones(1), Kind.STRUCTURE),
        (torch.ones(()), 1.0, Kind.STRUCTURE),
        (torch.ones(2), np.ones(2), Kind.STRUCTURE),
        (1.0, "text", Kind.STRUCTURE),
        (np.ones(3), np.array([1.0, 1.0, 1.5]), Kind.VALUE),
        (np.arange(3), np.array([0, 1, 3]), Kind.INTEGER),
        (np.ones(3), np.ones(4), Kind.SHAPE),
        (np.ones(3), np.ones(3, dtype=np.float32), Kind.DTYPE),
        (np.ones(3), np.ones(3, dtype=np.int64), Kind.DTYPE),
    ],
    ids=repr,
)
def test_values_that_differ_have_their_kind(expected, actual, kind):
    found = report(expected, actual)
    assert found.status is Status.DIFFERS
    assert kinds(found)[0] is kind
    assert found.kind == kind.value


def test_a_python_number_is_judged_as_the_item_of_a_float32():
    assert report(0.1, float(torch.tensor(0.1))).status is Status.SAME
    assert report(0.1, 0.1001).status is Status.DIFFERS


def test_arrays_of_words_are_compared_by_their_words():
    assert report(np.array(["a", "b"]), np.array(["a", "b"])).status is Status.SAME
    assert report(np.array(["a", "b"]), np.array(["a", "c"])).status is Status.DIFFERS


def test_objects_without_values_of_their_own_are_the_same_if_their_class_is():
    class Token:
        pass

    assert report(Token(), Token()).status is Status.SAME
    assert report(Token(), object()).status is Status.DIFFERS


# --- facts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "kind"),
    [
        (torch.ones(4, 6, dtype=torch.float64), Kind.DTYPE),
        (torch.ones(4, 6, dtype=torch.bfloat16), Kind.DTYPE),
        (torch.ones(4, 6, dtype=torch.int64), Kind.DTYPE),
        (torch.ones(4, 6, dtype=torch.complex64), Kind.DTYPE),
        (torch.ones(4, 5), Kind.SHAPE),
        (torch.ones(24), Kind.SHAPE),
        (torch.ones(4, 6).to_sparse(), Kind.LAYOUT),
        (torch.ones(6, 4).t(), Kind.STRIDE),
        (torch.ones(4, 12)[:, ::2], Kind.STRIDE),
        (leaf(torch.ones(4, 6), aliases=("args[0]",)), Kind.ALIAS),
        (leaf(torch.ones(4, 6), requires_grad=True), Kind.REQUIRES_GRAD),
    ],
)
def test_facts_that_differ_have_their_kind(actual, kind):
    found = report(torch.ones(4, 6), actual)
    assert found.status is Status.DIFFERS
    assert kinds(found)[0] is kind
    assert Kind.VALUE not in kinds(found)


@pytest.mark.parametrize("role", ["gradient", "parameter", "buffer", "input", "optimizer"])
def test_strides_and_aliases_count_for_outputs_only(role):
    left = leaf(torch.ones(4, 6), role=role)
    right = leaf(torch.ones(6, 4).t(), role=role, aliases=("args[0]",), requires_grad=True)
    assert report(left, right).status is Status.SAME


def test_strides_of_single_elements_and_of_empty_tensors_do_not_matter():
    left, right = torch.ones(3, 1, 2), torch.ones(3, 2).as_strided((3, 1, 2), (2, 77, 1))
    assert aligned(leaf(left)) == aligned(leaf(right)) == (2, 1)
    assert report(left, right).status is Status.SAME
    assert report(torch.ones(0, 3), torch.ones(3, 0).t()).status is Status.SAME


def test_a_wrong_dtype_does_not_hide_a_wrong_value():
    wrong = torch.ones(4, 6, dtype=torch.float64)
    wrong[1, 2] = 5
    found = report(torch.ones(4, 6), wrong)
    assert kinds(found) == [Kind.DTYPE, Kind.VALUE]
    assert found.where == (1, 2)


def test_every_mismatch_is_told_and_the_plainest_first():
    wrong = torch.ones(6, 4).t().clone(memory_format=torch.preserve_format)
    wrong[1, 2] = math.nan
    wrong[3, 3] = 9.0
    assert kinds(report(torch.ones(4, 6), wrong)) == [Kind.STRIDE, Kind.NONFINITE, Kind.VALUE]


# --- numbers of a leaf ---------------------------------------------------------------------------


def test_the_report_tells_where_and_how_far():
    truth = random(4, 6)
    eager, candidate = truth.float(), truth.float()
    candidate[2, 3] += 1.0
    found = report(eager, candidate, truth)
    assert (found.path, found.role, found.dtype, found.shape) == ("output", "output", "float32", (4, 6))
    assert found.where == (2, 3)
    assert found.wrong_elements == 1
    assert found.elements == 24
    assert found.has_reference
    assert found.candidate_error == pytest.approx(1.0, rel=1e-5)
    assert found.eager_error < 1e-6
    assert 0 < found.allowed < 1e-3
    (mismatch,) = found.mismatches
    assert mismatch.kind is Kind.VALUE
    assert mismatch.where == (2, 3)
    assert float(mismatch.expected) == pytest.approx(float(eager[2, 3]))
    assert float(mismatch.actual) == pytest.approx(float(candidate[2, 3]))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (torch.tensor([12345678901]), torch.tensor([12345678902])),
        (torch.tensor([1.0], dtype=torch.float64), torch.tensor([1.0 + 1e-12], dtype=torch.float64)),
    ],
)
def test_two_values_that_differ_are_printed_differently(expected, actual):
    (mismatch,) = report(expected, actual).mismatches
    assert mismatch.expected != mismatch.actual


def test_a_wrong_scale_is_a_bias():
    truth = random(64, 64)
    eager, candidate = truth.bfloat16(), (truth * 1.01).bfloat16()
    found = report(eager, candidate, truth, [truth.bfloat16()] * 3)
    assert kinds(found) == [Kind.BIAS]
    assert "scale" in found.mismatches[0].detail
    assert found.score <= TOLERANCE.threshold < found.aggregate_score


def test_noise_runs_widen_what_is_expected():
    truth = random(32, 32)
    candidate = (truth + 1e-3 * random(32, 32, seed=9)).float()
    assert report(truth.float(), candidate, truth).status is Status.DIFFERS
    samples = [(truth + 1e-3 * random(32, 32, seed=seed)).float() for seed in range(1, 7)]
    assert report(truth.float(), candidate, truth, samples).status is Status.SAME


def test_a_noise_run_of_another_shape_says_nothing():
    assert report(torch.ones(3), torch.ones(3), samples=[torch.ones(4), 1.0]).status is Status.SAME
    assert report(torch.ones(3), torch.ones(3) * 2, samples=[torch.ones(4)]).status is Status.DIFFERS


def test_a_better_candidate_is_told_apart():
    truth = random(64, 64)
    found = report((truth + 1e-2 * random(64, 64, seed=1)).float(), truth.float(), truth)
    assert found.status is Status.SAME
    assert found.nearer_than_eager


def test_integers_that_noise_flips_are_forgiven():
    eager = torch.tensor([1, 2, 3])
    assert report(eager, torch.tensor([1, 7, 3]), samples=[torch.tensor([1, 5, 3])]).status is Status.SAME
    # Noise takes 2 to 5; as far again on either side is forgiven, and no further.
    assert report(eager, torch.tensor([1, 9, 3]), samples=[torch.tensor([1, 5, 3])]).status is Status.DIFFERS
    found = report(eager, torch.tensor([0, 7, 3]), samples=[torch.tensor([1, 5, 3])])
    assert kinds(found) == [Kind.INTEGER]
    assert found.where == (0,)
    assert found.wrong_elements == 1


def test_state_that_nobody_wrote_to_is_not_looked_at():
    values = torch.ones(3)
    expected = Leaf(path="buffer.x", role="buffer", value=values, changed=False)
    found = Expectation(expected, None).judge(expected, TOLERANCE)
    assert found.status is Status.SAME
    assert found.note == UNCHANGED


def test_a_buffer_that_only_the_candidate_writes_to_is_a_mutation():
    expected = Leaf(path="buffer.x", role="buffer", value=torch.ones(3), changed=False)
    written = Leaf(path="buffer.x", role="buffer", value=torch.tensor([1.0, 2.0, 1.0]))
    found = Expectation(expected, None).judge(written, TOLERANCE)
    assert kinds(found) == [Kind.MUTATION, Kind.VALUE]
    assert found.where == (1,)
    same = Leaf(path="buffer.x", role="buffer", value=torch.ones(3))
    assert Expectation(expected, None).judge(same, TOLERANCE).status is Status.SAME


def test_a_buffer_that_the_candidate_forgets_to_write_to_is_a_mutation():
    expected = Leaf(path="buffer.x", role="buffer", value=torch.tensor([1.0, 2.0]))
    left_alone = Leaf(path="buffer.x", role="buffer", value=torch.ones(2), changed=False)
    found = Expectation(expected, None).judge(left_alone, TOLERANCE)
    assert kinds(found) == [Kind.MUTATION, Kind.VALUE]


# --- tensors made of tensors ---------------------------------------------------------------------


def test_a_sparse_leaf_is_judged():
    dense = torch.zeros(4, 4)
    dense[1, 2] = 3.0
    assert report(dense.to_sparse(), dense.to_sparse()).status is Status.SAME
    wrong = dense.clone()
    wrong[1, 2] = 4.0
    found = report(dense.to_sparse(), wrong.to_sparse())
    assert kinds(found) == [Kind.VALUE]
    assert found.where == (1, 2)


def ragged(*rows, layout=torch.jagged):
    return torch.nested.nested_tensor([torch.tensor(row) for row in rows], layout=layout)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_leaf_is_judged(layout):
    expected = ragged([1.0, 2.0], [3.0], layout=layout)
    assert report(expected, ragged([1.0, 2.0], [3.0], layout=layout)).status is Status.SAME
    assert report(expected, ragged([1.0, 2.0], [4.0], layout=layout)).status is Status.DIFFERS
    assert report(expected, ragged([1.0], [2.0, 3.0], layout=layout)).status is Status.DIFFERS


def test_a_quantised_leaf_is_judged_by_its_values():
    def quantised(scale, values=(1.0, 2.0)):
        return torch.quantize_per_tensor(torch.tensor(values) * scale, 0.1 * scale, 0, torch.qint8)

    assert report(quantised(1.0), quantised(1.0)).status is Status.SAME
    assert report(quantised(1.0), quantised(1.0, (1.0, 3.0))).status is Status.DIFFERS
    assert report(quantised(1.0), quantised(10.0)).status is Status.DIFFERS


def test_eight_bit_floats_and_empty_and_scalar_leaves_are_judged():
    eight = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert report(eight, eight.clone()).status is Status.SAME
    assert report(eight, torch.tensor([1.0, 16.0]).to(torch.float8_e4m3fn)).status is Status.DIFFERS
    empty = report(torch.ones(0, 3), torch.ones(0, 3))
    assert (empty.status, empty.elements) == (Status.SAME, 0)
    scalar = report(torch.tensor(1.0), torch.tensor(2.0))
    assert (scalar.status, scalar.where, scalar.elements) == (Status.DIFFERS, (), 1)


# --- pairing -------------------------------------------------------------------------------------


def test_leaves_are_paired_by_path_and_lonely_ones_are_told():
    here = {"a": leaf(torch.ones(2), path="a"), "b": leaf(torch.ones(2), path="b")}
    expectations = {path: Expectation(value, None) for path, value in here.items()}
    candidate = {"a": here["a"], "c": leaf(torch.ones(2), path="c")}
    comparison = compare_all(expectations, candidate, TOLERANCE)
    assert comparison.differing == ["b", "c"]
    assert kinds(comparison.reports["b"]) == [Kind.STRUCTURE]
    assert comparison.reports["b"].mismatches[0].actual == "missing"
    assert comparison.reports["c"].mismatches[0].expected == "absent"


def test_none_and_absent_are_the_same():
    expectations = {"a": Expectation(leaf(None, path="a"), None)}
    assert compare_all(expectations, {}, TOLERANCE).differing == []
    assert compare_all({}, {"a": leaf(None, path="a")}, TOLERANCE).differing == []


def test_suspicions_are_the_wrong_elements_of_float_parts():
    expectation = Expectation(leaf(torch.ones(4, 4)), None)
    wrong = torch.ones(4, 4)
    wrong[1, 1] = 7.0
    suspicions = expectation.suspicions(leaf(wrong), TOLERANCE)
    assert suspicions[""].indices.tolist() == [5]
    assert expectation.suspicions(leaf(torch.ones(4, 4, dtype=torch.int64)), TOLERANCE) == {}
    assert Expectation(leaf(torch.ones(4)), None).suspicions(leaf("text"), TOLERANCE) == {}
