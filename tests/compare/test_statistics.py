"""Streaming statistics: the truth is exact, the spread is that of the samples, and scale does not matter."""

import math

import pytest
import torch

from torchparity.compare import matrices
from torchparity.compare.integers import ExactBaseline
from torchparity.compare.matrices import Shape2d, Sums, as_real, identical, matrix, working_dtype
from torchparity.compare.statistics import FloatBaseline, all_finite, energy, outer_profile

WHOLE = (slice(None), slice(None))


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [
        ((), 1, 1),
        ((7,), 1, 7),
        ((3, 5), 3, 5),
        ((1, 5), 1, 5),
        ((4, 4, 4), 4, 16),
        ((2, 3, 4, 5, 6), 24, 30),
        ((1000, 2, 2), 1000, 4),
        ((0,), 1, 0),
        ((3, 0, 2), 1, 0),
        ((1 << 20,), 1024, 1024),
        ((1, 3 << 20, 1), 1536, 2048),
        ((1000003,), 1, 1000003),
        ((1 << 20, 2), 1 << 20, 2),
    ],
)
def test_the_matrix_view_is_as_square_as_the_dimensions_allow(shape, rows, columns):
    assert Shape2d.of(shape) == Shape2d(rows, columns)
    assert Shape2d.of(shape).total == math.prod(shape)


@pytest.mark.parametrize("size", [1, 3, 7, 12, 1000])
@pytest.mark.parametrize("shape", [Shape2d(5, 7), Shape2d(1, 20), Shape2d(20, 1), Shape2d(1, 0)])
def test_blocks_cover_every_element_once(monkeypatch, size, shape):
    monkeypatch.setattr(matrices, "BLOCK", {"cpu": size, "other": size})
    seen = torch.zeros(shape.rows, shape.columns)
    for rows, columns in shape.blocks(torch.device("cpu")):
        assert seen[rows, columns].numel() <= size
        seen[rows, columns] += 1
    assert bool((seen == 1).all())


def test_complex_and_tiny_floats_are_seen_as_real_numbers():
    values = torch.tensor([1 + 2j, 3 - 4j])
    assert as_real(values).tolist() == [[1, 2], [3, -4]]
    assert as_real(values.conj()).tolist() == [[1, -2], [3, 4]]
    assert as_real(torch.tensor([1.5]).to(torch.float8_e4m3fn)).dtype == torch.float32
    assert as_real(torch.ones(1, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert not as_real(torch.ones(1, requires_grad=True)).requires_grad


def test_identical_is_bit_for_bit_but_for_the_sign_of_zero():
    ones = torch.ones(3)
    assert identical(ones, torch.ones(3))
    assert not identical(ones, torch.ones(3, dtype=torch.float64))
    assert not identical(ones, torch.ones(1, 3))
    assert not identical(ones, ones + 2**-23)
    assert identical(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not identical(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, math.nan]))
    assert identical(torch.tensor([0.0]), torch.tensor([-0.0]))
    eight = torch.ones(3).to(torch.float8_e5m2)
    assert identical(eight, eight.clone())
    assert identical(torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64))


def test_differences_of_doubles_are_taken_in_double():
    assert working_dtype(torch.float64) == torch.float64
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert working_dtype(dtype) == torch.float32


def test_the_matrix_of_a_transposed_tensor_is_in_logical_order():
    values = torch.arange(6.0).reshape(2, 3).t()
    assert matrix(values, Shape2d.of((3, 2))).tolist() == values.tolist()


def test_sums_are_those_of_the_whole_matrix():
    difference, eager = random(5, 7), random(5, 7, seed=1)
    sums = Sums.zeros(Shape2d(5, 7), difference.device)
    sums.add(*WHOLE, difference, eager)
    expected = {
        "mean": difference.sum().reshape(1),
        "scale": (difference * eager).sum().reshape(1),
        "row mean": difference.sum(1),
        "column mean": difference.sum(0),
        "row scale": (difference * eager).sum(1),
        "column scale": (difference * eager).sum(0),
    }
    assert sums.vectors().keys() == expected.keys()
    for name, vector in sums.vectors().items():
        torch.testing.assert_close(vector, expected[name].double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_the_truth_is_eager_plus_a_correction_to_far_below_a_rounding(dtype):
    truth = random(40, 30, dtype=torch.float64)
    eager = truth.to(dtype)
    baseline = FloatBaseline(eager, truth)
    assert baseline.truth is None
    assert baseline.correction.dtype == torch.float32
    rebuilt = as_real(eager).double() + baseline.correction.double()
    error = (rebuilt - truth).abs() / truth.abs().clamp(min=0.1)
    assert float(error.max()) < torch.finfo(dtype).eps * 2**-23


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_difference_of_a_sample_is_the_one_from_float64(dtype):
    truth = random(20, 20, dtype=torch.float64)
    eager = (truth * (1 + 1e-3 * random(20, 20, seed=1, dtype=torch.float64))).to(dtype)
    sample = (truth * (1 + 1e-3 * random(20, 20, seed=2, dtype=torch.float64))).to(dtype)
    baseline = FloatBaseline(eager, truth)
    difference = baseline.difference(matrix(sample, baseline.layout), *WHOLE).double()
    expected = sample.double() - truth
    assert float((difference - expected).abs().max()) < 1e-6 * float(expected.abs().max())


def test_without_a_reference_eager_is_the_truth():
    eager = random(8, 8)
    baseline = FloatBaseline(eager, None)
    assert not baseline.has_reference
    assert float(baseline.difference(eager, *WHOLE).abs().max()) == 0.0
    assert float(baseline.difference(eager + 1, *WHOLE).min()) > 0.9


def test_values_that_are_not_finite_count_as_nothing_in_differences():
    eager = torch.tensor([1.0, math.inf, math.nan, -math.inf])
    truth = torch.tensor([1.5, math.inf, math.nan, -math.inf], dtype=torch.float64)
    baseline = FloatBaseline(eager, truth)
    assert baseline.finite.tolist() == [[True, False, False, False]]
    assert baseline.block(*WHOLE).tolist() == [[1, 0, 0, 0]]
    assert baseline.difference(eager.reshape(1, 4), *WHOLE).tolist() == [[-0.5, 0, 0, 0]]
    assert baseline.rms() == pytest.approx(0.5)


def test_an_empty_leaf_has_a_baseline():
    for shape in ((0,), (0, 3), (3, 0, 2)):
        baseline = FloatBaseline(torch.zeros(shape), torch.zeros(shape, dtype=torch.float64))
        baseline.add(torch.zeros(shape))
        assert baseline.rms() == 0.0
        assert baseline.samples == 1


def test_the_allowance_holds_the_spread_of_the_samples():
    eager = torch.ones(32, 32)
    baseline = FloatBaseline(eager, eager.double())
    for seed in range(20):
        baseline.add(eager + 1e-3 * random(32, 32, seed=seed))
    allowance = baseline.allowance(*WHOLE)
    assert 1e-3 < float(allowance.mean()) < 2e-3


def test_a_noisy_element_is_allowed_more_than_its_quiet_neighbours():
    eager = torch.ones(32, 32)
    baseline = FloatBaseline(eager, eager.double())
    for seed in range(6):
        noise = 1e-5 * random(32, 32, seed=seed)
        noise[3, 4] *= 1000
        baseline.add(eager + noise)
    allowance = baseline.allowance(*WHOLE)
    assert float(allowance[3, 4]) > 10 * float(allowance[20, 20])


def test_amplified_samples_are_scaled_back():
    eager = torch.ones(32, 32)
    quiet, loud = FloatBaseline(eager, eager.double()), FloatBaseline(eager, eager.double())
    noise = 2.0**-12 * random(32, 32)
    quiet.add(eager + noise)
    loud.add(eager + 4 * noise, amplitude=4.0)
    torch.testing.assert_close(loud.allowance(*WHOLE), quiet.allowance(*WHOLE), rtol=5e-2, atol=0.0)
    for name, square in quiet.sum_squares.items():
        torch.testing.assert_close(loud.sum_squares[name], square, rtol=2e-2, atol=1e-9)


@pytest.mark.parametrize("exponent", [-100, -80, -60, 60, 80, 100])
def test_the_scale_of_a_leaf_does_not_change_what_is_allowed_in_proportion(exponent):
    truth = random(24, 24, dtype=torch.float64)
    noise = [1e-4 * random(24, 24, seed=seed, dtype=torch.float64) for seed in range(1, 5)]

    def allowance(factor):
        baseline = FloatBaseline((truth * factor).float(), truth.float().double() * factor)
        for entry in noise:
            baseline.add(((truth + entry) * factor).float())
        return baseline.allowance(*WHOLE).double() / factor

    torch.testing.assert_close(allowance(2.0**exponent), allowance(1.0), rtol=1e-3, atol=0.0)


def test_a_sample_that_is_not_finite_is_noted_and_not_added():
    eager = torch.ones(4, 4)
    baseline = FloatBaseline(eager, eager.double())
    sample = eager.clone()
    sample[1, 2] = math.nan
    baseline.add(sample)
    assert baseline.noise_nonfinite.nonzero().tolist() == [[1, 2]]
    assert bool(torch.isfinite(baseline.allowance(*WHOLE)).all())


def test_a_sample_that_is_not_finite_is_noted_where_eager_has_an_infinity_elsewhere():
    eager = torch.ones(4, 4)
    eager[0, 0] = math.inf
    baseline = FloatBaseline(eager, eager.double())
    sample = eager.clone()
    sample[1, 2] = math.nan
    baseline.add(sample)
    assert baseline.noise_nonfinite is not None
    assert baseline.noise_nonfinite.nonzero().tolist() == [[1, 2]]


def test_all_finite_is_not_fooled_by_a_sum_that_overflows():
    assert all_finite(torch.full((4,), 3e38))
    assert all_finite(torch.full((100,), 60000.0, dtype=torch.float16))
    assert not all_finite(torch.tensor([math.inf, -math.inf]))
    assert not all_finite(torch.tensor([1.0, math.nan]))
    assert all_finite(torch.zeros(0))


def test_energy_is_not_finite_where_an_element_is_not():
    assert energy(torch.tensor([[3.0, 4.0]])) == 25.0
    assert not math.isfinite(energy(torch.tensor([1.0, math.nan])))
    assert energy(torch.zeros(0)) == 0.0


def test_an_outer_profile_has_the_means_it_was_given():
    row, column = torch.rand(20).double() + 0.5, torch.rand(30).double() + 0.5
    column *= row.mean() / column.mean()
    modelled = torch.outer(*outer_profile(row, column, Shape2d(20, 30), 0.0))
    torch.testing.assert_close(modelled.mean(1), row)
    torch.testing.assert_close(modelled.mean(0), column)


def test_a_profile_of_few_terms_is_flat():
    row, column = torch.tensor([1.0, 3.0]).double(), torch.tensor([2.0, 2.0, 2.0]).double()
    modelled = torch.outer(*outer_profile(row, column, Shape2d(2, 3), 0.0))
    torch.testing.assert_close(modelled, torch.full((2, 3), 2.0).double())


def test_no_row_is_left_without_an_allowance_and_none_gets_the_loud_rows():
    row, column = torch.zeros(20).double(), torch.ones(20).double()
    row[0] = 20.0
    modelled = torch.outer(*outer_profile(row, column, Shape2d(20, 20), 0.01))
    assert float(modelled[1:].min()) >= 0.01
    assert float(modelled[1:].max()) <= 0.2
    assert float(modelled[0].min()) >= 20.0


def test_integers_remember_where_samples_differ():
    baseline = ExactBaseline(torch.tensor([1, 2, 3]))
    baseline.add(torch.tensor([1, 2, 3]))
    assert baseline.seen == []
    baseline.add(torch.tensor([1, 5, 3]))
    baseline.add(torch.tensor([0, 2, 3]), amplitude=4.0)
    baseline.add(torch.tensor([0, 2, 3]))
    assert [values.tolist() for values in baseline.seen] == [[1, 5, 3], [0, 2, 3]]
    assert baseline.samples == 4
