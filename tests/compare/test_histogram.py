import math

import torch

from torchparity.compare.histogram import SAMPLE, error_histogram
from torchparity.compare.statistics import FloatBaseline


def baseline_of(truth):
    return FloatBaseline(truth.float(), truth)


def test_errors_are_counted_by_powers_of_two():
    truth = torch.zeros(6, dtype=torch.float64)
    candidate = torch.tensor([0.0, 0.25, 0.3, 1.0, 1.9, 2.0])
    found = error_histogram(baseline_of(truth), candidate)
    assert found.first == -2
    assert found.candidate == (2, 0, 2, 1)
    assert found.eager == (0, 0, 0, 0)
    assert found.exact == (6, 1)


def test_eagers_own_rounding_is_counted_beside_it():
    truth = torch.full((8,), 0.1, dtype=torch.float64)
    found = error_histogram(baseline_of(truth), truth.float())
    rounding = abs(float(torch.tensor(0.1)) - 0.1)
    assert found.first == math.frexp(rounding)[1] - 1
    assert found.eager == found.candidate == (8,)


def test_what_is_not_finite_is_no_error_of_any_size():
    truth = torch.zeros(4, dtype=torch.float64)
    found = error_histogram(baseline_of(truth), torch.tensor([math.nan, math.inf, 0.5, 0.0]))
    assert sum(found.candidate) == 1


def test_nothing_to_count():
    assert error_histogram(baseline_of(torch.zeros(0, dtype=torch.float64)), torch.zeros(0)) is None
    exact = error_histogram(baseline_of(torch.zeros(3, dtype=torch.float64)), torch.zeros(3))
    assert (exact.eager, exact.candidate, exact.exact) == ((), (), (3, 3))


def test_a_large_leaf_is_sampled():
    truth = torch.zeros(8 * SAMPLE, dtype=torch.float64)
    found = error_histogram(baseline_of(truth), torch.ones(8 * SAMPLE))
    assert sum(found.candidate) == SAMPLE
