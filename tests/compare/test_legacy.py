"""`same` says what torch._dynamo.utils.same says, on a table of inputs: answers and exceptions alike."""

import math
from collections import deque

import numpy as np
import pytest
import torch
from torch._dynamo.utils import same as original

from torchparity.compare.legacy import same

ONES = torch.ones(4)
NAN = torch.tensor([1.0, math.nan])
BOOLS = torch.tensor([True, False, True, True])


class Foo:
    """One of the class names that are compared attribute by attribute."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class QuestionAnsweringModelOutput(Foo):
    pass


def noisy(size, error, seed=0, dtype=torch.float32):
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    noise = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    return (values + error * noise).to(dtype)


def answer(function, *arguments, **options):
    """The result, or the class of the exception, of either function."""
    try:
        return bool(function(*arguments, log_error=lambda *facts: None, **options))
    except Exception as error:
        return type(error)


TABLE = [
    (ONES, ONES.clone(), {}),
    (ONES, ONES + 1e-5, {}),
    (ONES, ONES + 1e-3, {}),
    (ONES, ONES + 1e-3, {"tol": 1e-2}),
    (ONES, ONES + 0.5, {"tol": 1e-2}),
    (ONES, ONES.double(), {}),
    (ONES, ONES.double(), {"exact_dtype": False}),
    (ONES, (ONES * 2).double(), {"exact_dtype": False}),
    (torch.ones(4, dtype=torch.float16), torch.ones(4, dtype=torch.float16) + 0.01, {"tol": 0.02}),
    (NAN, NAN.clone(), {}),
    (NAN, NAN.clone(), {"equal_nan": True}),
    (NAN, torch.ones(2), {"equal_nan": True}),
    (torch.arange(4), torch.arange(4), {}),
    (torch.arange(4), torch.arange(4) + 1, {}),
    (torch.arange(4), torch.arange(4) + 1, {"ignore_non_fp": True}),
    (torch.zeros(0), torch.zeros(0), {}),
    (BOOLS, BOOLS.clone(), {}),
    (BOOLS, ~BOOLS, {}),
    (BOOLS, ~BOOLS, {"ignore_non_fp": True}),
    (BOOLS, ~BOOLS, {"use_iou_for_bool": True}),
    (BOOLS, torch.ones(4, dtype=torch.bool), {"use_iou_for_bool": True, "iou_threshold": 0.7}),
    (BOOLS, torch.ones(4, dtype=torch.bool), {"use_iou_for_bool": True, "iou_threshold": 0.8}),
    (torch.zeros(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool), {"use_iou_for_bool": True}),
    (ONES, ONES * 3, {"cos_similarity": True}),
    (ONES, torch.tensor([1.0, -1.0, 1.0, 1.0]), {"cos_similarity": True}),
    (torch.zeros(4), torch.zeros(4), {"cos_similarity": True}),
    (NAN, NAN.clone(), {"cos_similarity": True}),
    (ONES.to_sparse(), ONES.to_sparse(), {}),
    (ONES.to_sparse(), (ONES * 2).to_sparse(), {}),
    (ONES.to_sparse(), ONES, {}),
    ([ONES, ONES], [ONES, ONES], {}),
    ([ONES, ONES], (ONES, ONES), {}),
    ([ONES, ONES], [ONES, ONES * 2], {}),
    ([ONES], [ONES, ONES], {}),
    ([ONES], {"a": ONES}, {}),
    ([], [], {}),
    (deque([ONES]), [ONES], {}),
    (torch.Size([1, 2]), torch.Size([1, 2]), {}),
    (torch.Size([1, 2]), (1, 3), {}),
    (torch.nn.ParameterList([ONES]), [ONES], {}),
    ({"a": ONES, "b": [ONES]}, {"a": ONES, "b": [ONES]}, {}),
    ({"a": ONES}, {"a": ONES * 2}, {}),
    ({"a": ONES}, {"b": ONES}, {}),
    ({"a": ONES}, [ONES], {}),
    ({1, 2}, {1, 2}, {}),
    ({1, 2}, {1, 3}, {}),
    ({1, 2}, [1, 2], {}),
    (None, None, {}),
    (None, ONES, {}),
    (None, 1, {"ignore_non_fp": True}),
    (3, 3, {}),
    (3, 4, {}),
    (3, 4, {"ignore_non_fp": True}),
    (3, 3.0, {}),
    (True, True, {}),
    (True, False, {}),
    ("a", "a", {}),
    ("a", "b", {}),
    (torch.device("cpu"), torch.device("cpu"), {}),
    (1.0, 1.0, {}),
    (1.0, 1.00001, {}),
    (1.0, 2.0, {}),
    (1.0, 1, {}),
    (1.0, torch.tensor(1.0), {}),
    (1.0, "a", {}),
    (ONES, 1.0, {}),
    (math.nan, math.nan, {}),
    (math.nan, math.nan, {"equal_nan": True}),
    (np.float32(1), np.float32(1), {}),
    (np.float32(1), np.float32(2), {}),
    (np.float32(1), np.float64(1), {}),
    (np.float32(1), 1.0, {}),
    (np.float32(1), 1.0, {"relax_numpy_equality": True}),
    (np.float64(1), np.float64(1), {}),
    (np.float64(1), np.float64(1 + 1e-9), {}),
    (np.float64(1), 1.0, {}),
    (np.float64(1), np.float64(2), {}),
    (np.int64(1), np.int64(1), {}),
    (np.int64(1), 1, {}),
    (np.int64(1), 1, {"relax_numpy_equality": True}),
    (np.int64(1), np.int64(2), {"relax_numpy_equality": True}),
    (np.ones(3), np.ones(3), {}),
    (np.ones(3), np.ones(3) * 2, {}),
    (np.ones(3), torch.ones(3), {}),
    (np.ones(3, dtype=np.float32), np.ones(3), {}),
    (Foo(a=ONES, b=1), Foo(a=ONES, b=1), {}),
    (Foo(a=ONES, b=1), Foo(a=ONES, b=2), {}),
    (Foo(a=ONES), ONES, {}),
    (QuestionAnsweringModelOutput(loss=ONES, start=1), QuestionAnsweringModelOutput(loss=ONES, start=2), {}),
    (QuestionAnsweringModelOutput(loss=ONES), QuestionAnsweringModelOutput(loss=ONES * 2), {}),
    (object(), object(), {}),
    (1j, 1j, {}),
]


@pytest.mark.parametrize(("ref", "res", "options"), TABLE)
def test_it_agrees_with_the_original(ref, res, options):
    assert answer(same, ref, res, **options) == answer(original, ref, res, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(5,), (100,), (700,), (2000,), (50, 40, 1, 1)])
@pytest.mark.parametrize("times", [0.5, 1.9, 2.5, 3.5, 7.0, 9.0, 12.0])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tol": 2e-2},
        {"use_larger_multiplier_for_smaller_tensor": True},
        {"force_max_multiplier": True},
    ],
    ids=str,
)
def test_the_multipliers_of_the_error_agree_with_the_original(dtype, size, times, options):
    truth = noisy(size, 0.0, dtype=torch.float64)
    ref = noisy(size, 0.3, dtype=dtype)
    res = (truth + times * (ref.double() - truth)).to(dtype)
    assert answer(same, ref, res, truth, **options) == answer(original, ref, res, truth, **options)


def test_every_multiplier_decides_somewhere():
    """Guards the table above against inputs that all get one answer."""
    truth, ref = noisy((2000,), 0.0, dtype=torch.float64), noisy((2000,), 0.3)
    answers = [same(ref, (truth + times * (ref - truth)).float(), truth) for times in (1.9, 2.5)]
    assert answers == [True, False]


@pytest.mark.parametrize(
    ("ref", "res", "truth"),
    [
        (NAN, torch.ones(2), torch.ones(2).double()),
        (NAN, torch.ones(2) * 1.03, torch.ones(2).double()),
        (NAN, torch.ones(2) * 2, torch.ones(2).double()),
        (NAN, NAN * 2, NAN.double()),
        ([ONES], [ONES + 0.1], [ONES.double()]),
        ([ONES], [ONES + 0.1], [None]),
        ({"a": ONES, "b": None}, {"a": ONES, "b": None}, {"a": ONES.double(), "b": None}),
        ({"a": ONES}, {"a": ONES * 2}, {"a": None}),
        (ONES.to_sparse(), (ONES + 0.1).to_sparse(), ONES.double()),
        (np.ones(3), np.ones(3) * 1.1, np.ones(3)),
        (1.0, 1.1, torch.tensor(1.0, dtype=torch.float64)),
        (Foo(a=ONES), Foo(a=ONES + 0.1), Foo(a=(ONES + 0.1).double())),
    ],
)
@pytest.mark.parametrize("options", [{}, {"equal_nan": True}], ids=str)
def test_with_a_float64_reference_it_agrees_with_the_original(ref, res, truth, options):
    assert answer(same, ref, res, truth, **options) == answer(original, ref, res, truth, **options)


def test_a_refusal_is_logged_with_its_reason():
    said = []
    assert not same({"a": ONES}, {"a": ONES * 2}, log_error=lambda message, *facts: said.append(message % facts))
    assert "tol=0.0001" in said[0]
    assert "key name a" in said[1]
