"""The kernels give what the plain forms give. They want Triton: on a GPU, or interpreted (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch

from torchparity.compare import judgement, statistics
from torchparity.run import noise as noise_module

pytest.importorskip("triton")  # Owed to the machine: it comes with torch's CUDA builds.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA GPU, or TRITON_INTERPRET=1"
    ),
]
NUMBERS = (
    "score", "position", "allowed", "eager_error", "candidate_error", "wrong_elements", "aggregate_score",
    "eager_rms_error", "candidate_rms_error", "moved", "small",
)  # fmt: skip
SHAPES = ((1,), (5,), (17, 3), (100, 130), (33, 7, 65), (300, 513))


def judged(dtype, shape, *, fast, transposed, wild=False, monkeypatch):
    """Judge a candidate that is wrong in one place, and eager itself, in one of the two ways."""
    if fast:
        from torchparity.compare import kernels
    else:
        kernels = None
    monkeypatch.setattr(statistics, "leaf_kernels", lambda kind: kernels)
    dice = torch.Generator().manual_seed(0)
    true = torch.randn(shape, generator=dice, dtype=torch.float64) * 3
    true = torch.where(true.abs() < 1e-3, 1e-3, true)

    def rounded():
        drawn = torch.randn(shape, generator=dice, dtype=torch.float64)
        return (true * (1 + torch.finfo(dtype).eps * 0.5 * drawn)).to(dtype)

    def placed(tensor):
        turned = tensor.t().contiguous().t() if transposed and tensor.dim() == 2 else tensor
        return turned.to(DEVICE)

    eager, samples, candidate = true.to(dtype), [rounded() for _ in range(4)], rounded()
    candidate.view(-1)[candidate.numel() // 3] *= 1.02
    if wild:
        samples[1].view(-1)[0] = float("nan")
        candidate.view(-1)[0] = float("inf")
    baseline = statistics.FloatBaseline(placed(eager), placed(true))
    assert (baseline.kernels is not None) is fast
    for sample in (*samples, eager):
        baseline.add(placed(sample))
    tolerance = judgement.Tolerance()
    both = judgement.judge_float(baseline, placed(candidate), tolerance)
    return both, judgement.judge_float(baseline, placed(eager), tolerance)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_leaf_is_judged_alike(dtype, shape, transposed, monkeypatch):
    plain, eager = judged(dtype, shape, fast=False, transposed=transposed, monkeypatch=monkeypatch)
    fast, same = judged(dtype, shape, fast=True, transposed=transposed, monkeypatch=monkeypatch)

    near = 1e-4 if dtype == torch.float32 else 2e-2  # Of half precision squares and corrections are kept in half.
    for name in NUMBERS:
        assert getattr(fast, name) == pytest.approx(getattr(plain, name), rel=near, abs=1e-12), name
    assert same.identical
    assert eager.identical


@pytest.mark.parametrize("shape", [(5, 900), (90, 3), (2000,), (40, 600)], ids=str)
def test_programs_that_go_down_many_rows_and_strips_judge_alike(shape, monkeypatch):
    from torchparity.compare import tiles

    monkeypatch.setattr(tiles, "PROGRAMS", 2)
    plain, _ = judged(torch.float32, shape, fast=False, transposed=False, monkeypatch=monkeypatch)
    fast, _ = judged(torch.float32, shape, fast=True, transposed=False, monkeypatch=monkeypatch)
    for name in NUMBERS:
        assert getattr(fast, name) == pytest.approx(getattr(plain, name), rel=1e-4, abs=1e-12), name


# Owed to the machine: interpreted, so many programs take minutes.
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
def test_one_long_row_is_judged():
    """A device has few programs in its second dimension: a row of many strips lies along the first."""
    long = torch.randn(33554393, device=DEVICE)  # A prime: it is not cut into several rows.
    baseline = statistics.FloatBaseline(long, long.double())
    baseline.add(long)
    assert baseline.kernels is not None
    wrong = long.clone()
    wrong[12345678] += 1
    assert judgement.judge_float(baseline, wrong, judgement.Tolerance()).position == 12345678


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1.0, 2.0**-24], ids=["normal", "least"])
def test_a_candidate_that_is_the_truth_has_a_place_too(dtype, shape, size, monkeypatch):
    """Eager is off by a step, the candidate by nothing: no element is worse than another, and none lies outside."""
    from torchparity.compare import kernels

    monkeypatch.setattr(statistics, "leaf_kernels", lambda kind: kernels)
    true = torch.full(shape, size, dtype=torch.float64, device=DEVICE)
    eager = (true * 2).to(dtype)
    baseline = statistics.FloatBaseline(eager, true)
    for _ in range(3):
        baseline.add(eager)
    found = judgement.judge_float(baseline, true.to(dtype), judgement.Tolerance())

    assert (found.score, found.candidate_error) == (0.0, 0.0)
    assert 0 <= found.position < true.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_finite_is_left_to_the_plain_form(dtype, monkeypatch):
    plain, _ = judged(dtype, (40, 50), fast=False, transposed=False, wild=True, monkeypatch=monkeypatch)
    fast, _ = judged(dtype, (40, 50), fast=True, transposed=False, wild=True, monkeypatch=monkeypatch)

    assert fast.nonfinite_position == plain.nonfinite_position is None  # One sample had it there too.
    assert fast.score == pytest.approx(plain.score, rel=2e-2)


@pytest.mark.parametrize("amplitude", [1.0, 4.0])
@pytest.mark.parametrize(
    ("dtype", "chain"),
    [
        *((dtype, None) for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)),
        *((dtype, 3.0) for dtype in (torch.float64, torch.float32)),  # Sums of 16-bit floats are kept in 32 bits.
    ],
    ids=str,
)
def test_results_are_moved_as_far(dtype, chain, amplitude, monkeypatch):
    from torchparity.run import kernels

    exact = torch.tensor([0.0, 1.0, -2.0, float("inf"), float("-inf"), float("nan")])
    moved = {}
    for name, found in (("plain", None), ("fast", kernels)):
        monkeypatch.setattr(noise_module, "noise_kernels", lambda kind, found=found: found)
        drawn = torch.randn(100_003, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        before = torch.cat([exact.double(), drawn]).to(dtype).to(DEVICE)
        after = before.clone()
        noise = noise_module.Noise(noise_module.NoiseBank(3), run=1, amplitude=amplitude, replay=[])
        told = torch.tensor(chain, device=DEVICE) if chain is not None else None
        noise.perturb(after, chain=told)
        assert torch.equal(after[: len(exact)].nan_to_num(7.0), before[: len(exact)].nan_to_num(7.0))
        steps = (after - before)[len(exact) :].double() / torch.finfo(dtype).eps
        moved[name] = (steps.square().mean().sqrt().item(), (steps != 0).double().mean().item(), steps.mean().item())
    assert moved["fast"][0] == pytest.approx(moved["plain"][0], rel=0.03)
    assert moved["fast"][1] == pytest.approx(moved["plain"][1], rel=0.03)
    assert abs(moved["fast"][2]) < 5 * moved["fast"][0] / 100_000**0.5


def test_they_can_be_tried_out():
    from torchparity.compare import kernels as of_leaves
    from torchparity.run import kernels as of_noise

    for kernels in (of_leaves, of_noise):
        kernels.try_out(torch.device(DEVICE))


def test_the_digest_of_memory_knows_every_byte_and_its_place():
    from torchparity.compare.digest_kernels import digest

    for size in (0, 1, 7, 8, 9, 24, 1000):
        for first in (0, 1, 8):
            row = torch.arange(size + first, dtype=torch.int64, device=DEVICE).to(torch.uint8)[first:]
            known = {digest(row)}
            assert known == {digest(row.clone())} or first == 1  # There it is taken byte by byte.
            for place in range(0, size, 1 + size // 9):
                other = row.clone()[None].repeat(2, 1)[0]
                other[place] ^= 128
                known.add(digest(other))
            assert len(known) == 1 + len(range(0, size, 1 + size // 9))
    signs = torch.ones(64, dtype=torch.float64, device=DEVICE)
    turned = signs.clone()
    turned[[5, 40]] = -1
    assert digest(signs.view(torch.uint8)) != digest(turned.view(torch.uint8))
