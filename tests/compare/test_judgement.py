"""The judgement on one leaf: what rounding does is forgiven, what it does not do is seen, at the right place."""

import math

import pytest
import torch

from torchparity.compare.integers import ExactBaseline
from torchparity.compare.judgement import (
    THRESHOLD,
    Suspicion,
    Tolerance,
    judge_exact,
    judge_float,
    unravel,
    value_at,
)
from torchparity.compare.statistics import FloatBaseline

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
TOLERANCE = Tolerance()


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rounded(truth, dtype, seed, steps=1.0):
    """One correct run: the truth, moved by about one unit in the last place, and rounded."""
    epsilon = torch.finfo(dtype).eps
    return (truth * (1 + steps * epsilon * 0.5 * random(*truth.shape, seed=seed))).to(dtype)


def baseline_of(truth, dtype=torch.float32, *, samples=6, reference=True):
    baseline = FloatBaseline(rounded(truth, dtype, 100), truth if reference else None)
    for seed in range(samples):
        baseline.add(rounded(truth, dtype, seed))
    return baseline


def judge(baseline, candidate, tolerance=TOLERANCE):
    return judge_float(baseline, candidate, tolerance)


def clean(judgement):
    return (
        judgement.score <= THRESHOLD
        and judgement.aggregate_score <= THRESHOLD
        and judgement.nonfinite_position is None
        and judgement.wrong_elements == 0
    )


@pytest.mark.parametrize("shape", [(1 << 20,), (1, 3 << 19), (1 << 21, 1)])
def test_a_long_row_is_cut_and_keeps_little_beside_itself(shape):
    truth = random(*shape)
    baseline = baseline_of(truth, samples=3)
    right = rounded(truth, torch.float32, 50)
    wrong, shifted = right.clone(), right + 3e-9
    wrong.view(-1)[777_777] += 1e-4

    assert baseline.kept.numel() < truth.numel() / 50
    assert clean(judge(baseline, right))
    assert judge(baseline, wrong).position == 777_777
    assert not clean(judge(baseline, wrong))
    assert not clean(judge(baseline, shifted))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (300,), (40, 30), (2, 3, 4, 5, 6), (1, 1, 500)])
def test_another_correct_run_is_clean(shape, dtype):
    truth = random(*shape)
    baseline = baseline_of(truth, dtype, reference=dtype != torch.float64)
    judgement = judge(baseline, rounded(truth, dtype, 77))
    assert clean(judgement)
    assert judgement.score > 0.0 or truth.numel() == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (40, 30), (2, 3, 4, 5, 6)])
def test_one_element_far_off_is_seen_at_its_place(shape, dtype):
    truth = random(*shape)
    baseline = baseline_of(truth, dtype, reference=dtype != torch.float64)
    candidate = rounded(truth, dtype, 77)
    place = math.prod(shape) * 2 // 3
    candidate.view(-1)[place] += 3.0
    judgement = judge(baseline, candidate)
    assert judgement.score > THRESHOLD
    assert judgement.position == place
    assert judgement.wrong_elements == 1
    assert judgement.candidate_error == pytest.approx(3.0, rel=0.1)
    assert judgement.allowed < 3.0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats_are_judged(dtype):
    truth = random(32, 32).clamp(-3, 3)
    eager = truth.to(dtype)
    baseline = FloatBaseline(eager, truth)
    baseline.add(eager)
    assert judge(baseline, eager.clone()).score == 0.0
    wide = eager.float()
    wide[5, 6] = 40.0
    judgement = judge(baseline, wide.to(dtype))
    assert judgement.score > THRESHOLD
    assert unravel(judgement.position, (32, 32)) == (5, 6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_either_half_of_a_complex_number_is_judged(dtype):
    truth = torch.complex(random(6, 8), random(6, 8, seed=1))
    eager = truth.to(dtype)
    baseline = FloatBaseline(eager, truth if dtype == torch.complex64 else None)
    baseline.add(eager)
    assert clean(judge(baseline, (truth * (1 + torch.finfo(dtype).eps)).to(dtype)))
    for half, offset in enumerate((1e-3, 1e-3j)):
        candidate = eager.clone()
        candidate[2, 3] += offset
        judgement = judge(baseline, candidate)
        assert judgement.score > THRESHOLD
        assert unravel(judgement.position, baseline.shape) == (2, 3, half)


def test_an_empty_leaf_is_clean():
    baseline = FloatBaseline(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.float64))
    judgement = judge(baseline, torch.zeros(0, 4))
    assert clean(judgement)
    assert judgement.score == 0.0


def test_eager_itself_scores_zero():
    truth = random(10, 10)
    baseline = baseline_of(truth)
    judgement = judge(baseline, baseline.eager.clone())
    assert judgement.score == judgement.aggregate_score == 0.0
    assert judgement.candidate_rms_error == judgement.eager_rms_error > 0.0


def test_a_transposed_candidate_is_read_in_logical_order():
    truth = random(30, 20)
    baseline = baseline_of(truth)
    transposed = rounded(truth, torch.float32, 77).t().contiguous().t()
    assert not transposed.is_contiguous()
    assert clean(judge(baseline, transposed))


def test_one_wrong_element_in_a_million_is_seen():
    truth = random(1000, 1000)
    baseline = baseline_of(truth, samples=3)
    candidate = rounded(truth, torch.float32, 77)
    candidate[123, 456] += 1e-4
    judgement = judge(baseline, candidate)
    assert judgement.score > THRESHOLD
    assert unravel(judgement.position, (1000, 1000)) == (123, 456)
    assert judgement.wrong_elements == 1


@pytest.mark.parametrize("scale", [1e-33, 1e-30, 1e-20, 1e20, 1e30, 1e37])
def test_tiny_and_huge_leaves_are_judged_as_ordinary_ones(scale):
    truth = random(40, 30) * scale
    baseline = baseline_of(truth)
    assert clean(judge(baseline, rounded(truth, torch.float32, 77)))
    wrong = rounded(truth, torch.float32, 77)
    wrong[7, 8] += 1e-3 * scale
    judgement = judge(baseline, wrong)
    assert judgement.score > THRESHOLD
    assert unravel(judgement.position, (40, 30)) == (7, 8)
    assert judgement.candidate_rms_error == pytest.approx(1e-3 * scale / math.sqrt(1200), rel=0.01)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_noise_far_above_a_rounding_is_allowed_at_any_scale(scale):
    """A gradient that is the difference of large terms: every run is off by a hundred roundings."""
    truth = random(40, 30)
    baseline = FloatBaseline((rounded(truth, torch.float32, 100, steps=200) * scale), truth * scale)
    for seed in range(6):
        baseline.add(rounded(truth, torch.float32, seed, steps=200) * scale)
    assert clean(judge(baseline, rounded(truth, torch.float32, 77, steps=200) * scale))


@pytest.mark.parametrize("scale", [1e-25, 1e30])
def test_the_score_does_not_depend_on_the_scale(scale):
    power = 2.0 ** round(math.log2(scale))
    truth = random(40, 30)
    scores = []
    for factor in (1.0, power):
        baseline = baseline_of(truth * factor)
        judgement = judge(baseline, rounded(truth * 1.00001 * factor, torch.float32, 77))
        scores.append((judgement.score, judgement.aggregate_score))
    assert scores[0] == pytest.approx(scores[1], rel=1e-2)


# --- aggregates ----------------------------------------------------------------------------------


def test_a_wrong_scale_in_bfloat16_is_seen_in_aggregate_only():
    truth = random(64, 64)
    baseline = baseline_of(truth, torch.bfloat16)
    judgement = judge(baseline, rounded(truth * 1.01, torch.bfloat16, 77))
    assert judgement.score <= THRESHOLD
    assert judgement.wrong_elements == 0
    assert judgement.aggregate_score > THRESHOLD
    assert "scale" in judgement.aggregate


@pytest.mark.parametrize(
    ("axis", "name"), [(slice(9, 10), "row"), ((slice(None), slice(9, 10)), "column")], ids=["row", "column"]
)
def test_a_bias_in_one_row_or_column_names_it(axis, name):
    truth = random(256, 256)
    baseline = baseline_of(truth, torch.bfloat16)
    moved = truth.clone()
    moved[axis] *= 1.02
    judgement = judge(baseline, rounded(moved, torch.bfloat16, 77))
    assert judgement.score <= THRESHOLD
    assert judgement.aggregate_score > THRESHOLD
    assert judgement.aggregate.startswith(name)


def test_a_shift_that_no_element_shows_is_seen():
    truth = random(64, 64) + 5
    baseline = baseline_of(truth, torch.bfloat16)
    judgement = judge(baseline, rounded(truth + 0.03, torch.bfloat16, 77))
    assert judgement.score <= THRESHOLD < judgement.aggregate_score


def test_few_elements_have_no_aggregate():
    truth = random(15)
    judgement = judge(baseline_of(truth, torch.bfloat16), rounded(truth * 1.01, torch.bfloat16, 77))
    assert judgement.aggregate == ""
    assert judgement.aggregate_score == 0.0


def test_a_loud_row_does_not_hide_an_error_in_a_quiet_one():
    truth = random(64, 64)
    loud = truth.clone()
    loud[0] *= 1e4
    baseline = baseline_of(loud)
    assert clean(judge(baseline, rounded(loud, torch.float32, 77)))
    candidate = rounded(loud, torch.float32, 77)
    candidate[5, 5] += 0.1
    judgement = judge(baseline, candidate)
    assert judgement.score > THRESHOLD
    assert unravel(judgement.position, (64, 64)) == (5, 5)


def test_an_exact_row_beside_a_noisy_one_stays_nearly_exact():
    eager = torch.ones(64, 64)
    baseline = FloatBaseline(eager, eager.double())
    for seed in range(6):
        sample = eager.clone()
        sample[0] += 1e-3 * random(64, seed=seed, dtype=torch.float32)
        baseline.add(sample)
    candidate = eager.clone()
    candidate[5, 5] += 5e-3
    assert judge(baseline, candidate).score > THRESHOLD
    candidate = eager.clone()
    candidate[0, 5] += 1e-3
    assert judge(baseline, candidate).score <= THRESHOLD


# --- NaN and Inf ---------------------------------------------------------------------------------


def with_values(**places):
    values = torch.ones(4, 8)
    for name, value in places.items():
        values.view(-1)[int(name[1:])] = value
    return values


def judged(eager, truth, candidate):
    baseline = FloatBaseline(eager, truth)
    baseline.add(eager)
    return judge(baseline, candidate)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_must_stand_where_eager_has_it(value):
    eager = with_values(_9=value)
    assert clean(judged(eager, eager.double(), eager.clone()))
    assert judged(eager, eager.double(), with_values(_10=value)).nonfinite_position in (9, 10)
    finite = torch.ones(4, 8)
    assert judged(finite, finite.double(), with_values(_9=value)).nonfinite_position == 9
    assert judged(finite, None, with_values(_9=value)).nonfinite_position == 9
    assert judged(eager, None, eager.clone()).nonfinite_position is None


def test_one_infinity_is_not_the_other_nor_a_nan():
    eager = with_values(_9=math.inf)
    assert judged(eager, eager.double(), with_values(_9=-math.inf)).nonfinite_position == 9
    assert judged(eager, eager.double(), with_values(_9=math.nan)).nonfinite_position == 9


def test_a_finite_value_where_eager_and_the_truth_are_nan_is_seen():
    eager = with_values(_9=math.nan)
    assert judged(eager, eager.double(), torch.ones(4, 8)).nonfinite_position == 9


def test_a_candidate_may_have_what_the_truth_has_where_eager_overflows():
    eager, truth = with_values(_9=math.inf), with_values(_9=2.0).double()
    assert clean(judged(eager, truth, with_values(_9=2.0)))
    assert clean(judged(eager, truth, with_values(_9=math.inf)))
    assert judged(eager, truth, with_values(_9=math.nan)).nonfinite_position == 9
    wrong = judged(eager, truth, with_values(_9=3.0))
    assert wrong.score > THRESHOLD
    assert wrong.position == 9


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2.0])
def test_where_eager_alone_has_nan_an_infinity_is_no_worse(value):
    """Zero times an overflow: compiled code that rounds later has the overflow."""
    eager, truth = with_values(_9=math.nan), with_values(_9=2.0).double()
    assert clean(judged(eager, truth, with_values(_9=value)))
    assert judged(eager, eager.double(), with_values(_9=math.inf)).nonfinite_position == 9


def test_where_eager_overflows_the_truth_may_be_rounded():
    """The truth there is a hundred times as large as its neighbours, and so is its last bit."""
    eager = with_values(_9=math.inf).to(torch.float16)
    truth = with_values(_9=100.0).double()
    truth.view(-1)[9] = 100.03
    candidate = with_values(_9=100.0).to(torch.float16)
    assert clean(judged(eager, truth, candidate))


def test_finite_elements_beside_an_infinity_are_still_judged():
    eager = with_values(_9=math.inf)
    judgement = judged(eager, eager.double(), with_values(_9=math.inf, _20=1.5))
    assert judgement.nonfinite_position is None
    assert judgement.score > THRESHOLD
    assert judgement.position == 20


@pytest.mark.parametrize("elsewhere", [1.0, math.inf], ids=["finite", "infinity elsewhere"])
def test_a_nan_that_noise_makes_too_is_forgiven(elsewhere):
    eager = with_values(_9=1.0, _0=elsewhere)
    baseline = FloatBaseline(eager, eager.double())
    baseline.add(with_values(_9=math.nan, _0=elsewhere))
    assert judge(baseline, with_values(_9=math.nan, _0=elsewhere)).nonfinite_position is None
    assert judge(baseline, with_values(_10=math.nan, _0=elsewhere)).nonfinite_position == 10


# --- a fixed tolerance, other dtypes -------------------------------------------------------------


def test_a_relative_tolerance_is_a_share_of_the_value_or_of_the_leafs_scale():
    eager = torch.tensor([1.0, 100.0, 1e-6, 1.0])
    tolerance = Tolerance(relative=1e-2)
    baseline = FloatBaseline(eager, None)
    rms = baseline.rms()
    inside = eager + torch.tensor([0.0, 0.99, 0.0099 * rms, 0.0])
    assert judge(baseline, inside, tolerance).score <= tolerance.threshold
    outside = eager + torch.tensor([0.0, 1.01, 0.0, 0.0])
    judgement = judge(baseline, outside, tolerance)
    assert judgement.score > tolerance.threshold
    assert judgement.position == 1
    assert judgement.allowed == pytest.approx(1.0, rel=1e-3)


def test_a_relative_tolerance_looks_at_no_aggregate():
    truth = random(64, 64)
    baseline = baseline_of(truth)
    judgement = judge(baseline, (truth * 1.005).float(), Tolerance(relative=1e-2))
    assert judgement.score <= THRESHOLD
    assert judgement.aggregate_score == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_candidate_of_another_dtype_can_still_be_measured(dtype):
    truth = random(8, 8)
    baseline = baseline_of(truth, torch.bfloat16)
    judgement = judge(baseline, truth.to(dtype))
    assert judgement.score <= THRESHOLD
    assert judgement.candidate_rms_error < judgement.eager_rms_error


# --- kinks ---------------------------------------------------------------------------------------


def test_an_element_that_amplified_noise_reaches_is_explained():
    eager = torch.ones(10, 10)
    baseline = FloatBaseline(eager, eager.double())
    candidate = eager.clone()
    candidate[3, 4] = 2.0
    suspicion = Suspicion(baseline, candidate, TOLERANCE)
    assert suspicion.indices.tolist() == [34]
    assert not suspicion.reached()
    assert not suspicion.explained()
    approach = eager.clone()
    approach[3, 4] = 1.3
    suspicion.add(approach)
    assert suspicion.reached()
    assert not suspicion.explained()
    suspicion.add(candidate)
    assert suspicion.explained()
    suspicion.add(eager)
    assert suspicion.explained()


def with_noise(size, *, step=0.0, crossing=(), runs=16, seed=0):
    """A leaf near zero with six runs of smooth noise, and amplified ones, some of which cross a step at one element."""
    eager = random(10, 10, seed=seed).float()
    baseline = FloatBaseline(eager, eager.double())
    for run in range(6):
        baseline.add(eager + size * random(10, 10, seed=seed + run + 1).float())
    amplified = [eager + 4 * size * random(10, 10, seed=seed + run + 50).float() for run in range(runs)]
    for run in crossing:
        amplified[run][3, 4] += step
    return eager, baseline, amplified


@pytest.mark.parametrize("crossing", [(2,), (2, 5, 7), (2, 5, 7, 9, 11)], ids=len)
@pytest.mark.parametrize("height", [12.0, 100.0, 10_000.0])
def test_a_step_is_one_however_often_amplified_noise_crosses_it(height, crossing):
    """Runs that cross it widen the spread, so that the candidate seems less far off; it is no less a step for that."""
    size = 1e-3
    eager, baseline, amplified = with_noise(size, step=height * 4 * size, crossing=crossing)
    candidate = eager.clone()
    candidate[3, 4] += height * 4 * size
    suspicion = Suspicion(baseline, candidate, TOLERANCE)
    for run in amplified:
        suspicion.add(run)
        baseline.add(run, amplitude=4.0)
    assert suspicion.indices.tolist() == [34]
    assert suspicion.explained()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("height", [10.0, 14.0, 30.0])
def test_smooth_noise_explains_no_step(height, seed):
    size = 1e-3
    eager, baseline, amplified = with_noise(size, seed=1000 * seed)
    candidate = eager.clone()
    candidate[3, 4] += height * size
    suspicion = Suspicion(baseline, candidate, TOLERANCE)
    for run in amplified:
        suspicion.add(run)
        baseline.add(run, amplitude=4.0)
    assert not suspicion.explained()


def test_noise_elsewhere_explains_nothing():
    eager = torch.ones(10, 10)
    baseline = FloatBaseline(eager, eager.double())
    candidate = eager.clone()
    candidate[3, 4] = 2.0
    suspicion = Suspicion(baseline, candidate, TOLERANCE)
    elsewhere = eager.clone()
    elsewhere[4, 3] = 2.0
    suspicion.add(elsewhere)
    assert not suspicion.reached()
    assert not suspicion.explained()


def test_a_bias_without_suspicious_elements_is_never_explained():
    eager = torch.ones(10, 10)
    suspicion = Suspicion(FloatBaseline(eager, eager.double()), eager.clone(), TOLERANCE)
    suspicion.add(eager + 1)
    assert not suspicion.explained()


def test_a_suspicion_where_the_leaf_has_an_infinity():
    eager = with_values(_9=math.inf)
    baseline = FloatBaseline(eager, eager.double())
    candidate = with_values(_9=math.inf, _20=2.0)
    suspicion = Suspicion(baseline, candidate, TOLERANCE)
    assert suspicion.indices.tolist() == [20]
    suspicion.add(candidate)
    assert suspicion.explained()


# --- integers ------------------------------------------------------------------------------------


def test_integers_are_judged_exactly():
    baseline = ExactBaseline(torch.tensor([[1, 2], [3, 4]]))
    assert judge_exact(baseline, torch.tensor([[1, 2], [3, 4]])) == (0, None)
    assert judge_exact(baseline, torch.tensor([[1, 2], [0, 0]])) == (2, 2)


def test_integers_that_the_noise_flips_are_forgiven_and_others_are_not():
    baseline = ExactBaseline(torch.tensor([1, 2, 3, 4]))
    baseline.add(torch.tensor([1, 9, 3, 4]))
    assert judge_exact(baseline, torch.tensor([1, 7, 3, 4])) == (0, None)
    assert judge_exact(baseline, torch.tensor([1, 7, 3, 5])) == (1, 3)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
def test_every_integer_dtype_can_be_judged(dtype):
    baseline = ExactBaseline(torch.tensor([0, 1, 1]).to(dtype))
    baseline.add(torch.tensor([1, 1, 1]).to(dtype))
    assert judge_exact(baseline, torch.tensor([1, 1, 0]).to(dtype)) == (1, 2)


def test_an_empty_integer_leaf_is_clean():
    assert judge_exact(ExactBaseline(torch.zeros(0, dtype=torch.long)), torch.zeros(0, dtype=torch.long)) == (0, None)


def test_a_flat_position_becomes_an_index():
    shape = (2, 3, 4)
    for position in range(24):
        index = unravel(position, shape)
        assert (index[0] * 3 + index[1]) * 4 + index[2] == position
    assert unravel(0, ()) == ()


def test_one_element_is_read_in_logical_order():
    values = torch.arange(6).reshape(2, 3).t()
    assert value_at(values, 1) == 3
    assert value_at(torch.tensor([1 + 2j]), 1) == 2.0
    assert value_at(torch.tensor([True]), 0) is True
