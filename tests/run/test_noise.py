"""Rounding noise: what is exact stays, what is rounded moves by its last bits, and runs can be repeated."""

import importlib
import json
import math

import pytest
import torch

from torchparity import torchapi
from torchparity.run import noise as noise_module
from torchparity.run.bank import NoiseBank
from torchparity.run.noise import BITS, Noise

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BANK = NoiseBank(1)


def make(run=1, amplitude=1.0, replay=()):
    return Noise(BANK, run=run, amplitude=amplitude, replay=list(replay))


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def moved_by(before, after):
    """How many units in the last place each element moved."""
    integer, _ = BITS[before.dtype]
    return (after.contiguous().view(integer).long() - before.contiguous().view(integer).long()).abs()


# --- perturb -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_about_a_quarter_moves_by_one_unit_and_no_more(dtype):
    before = random(100, 100, dtype=dtype)
    after = before.clone()
    make().perturb(after)
    steps = moved_by(before, after)
    assert int(steps.max()) == 1
    share = float((steps == 1).float().mean())
    assert 0.15 < share < 0.26
    assert abs(float((after.double() - before.double()).sign().mean())) < 0.05


@pytest.mark.parametrize("amplitude", [2.0, 4.0, 16.0])
def test_amplified_noise_moves_by_at_most_that_many_units(amplitude):
    before = random(100, 100)
    after = before.clone()
    make(amplitude=amplitude).perturb(after)
    steps = moved_by(before, after)
    assert 0.6 * amplitude <= int(steps.max()) <= amplitude
    spread = float(steps.double().square().mean().sqrt())
    assert spread == pytest.approx(amplitude / 2, rel=0.45 if amplitude < 4 else 0.3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_values_never_move(dtype):
    tiny = torch.finfo(dtype).tiny
    exact = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 15.0, 0.5, 0.25, 1024.0, math.inf, -math.inf, math.nan, tiny]
    before = torch.tensor(exact, dtype=dtype).repeat(500)
    for run in range(4):
        after = before.clone()
        make(run=run, amplitude=4.0).perturb(after)
        integer, _ = BITS[dtype]
        assert torch.equal(after.view(integer), before.view(integer))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("amplitude", [1.0, 4.0])
def test_no_value_at_all_becomes_infinite_or_nan_or_changes_its_sign(dtype, amplitude):
    """Every bit pattern there is: subnormal numbers and the largest ones included."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    before = every[torch.isfinite(every)].repeat(8)
    for run in range(3):
        after = before.clone()
        make(run=run, amplitude=amplitude).perturb(after)
        assert before[~torch.isfinite(after)].tolist() == []
        assert before[after.double().sign() * before.double().sign() < 0].tolist() == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_number_of_a_mask_stays_finite(dtype):
    values = torch.full((1000,), torch.finfo(dtype).min, dtype=dtype)
    make().perturb(values)
    assert bool(torch.isfinite(values).all())


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[3:, 1:],
        lambda x: x.reshape(4, 10, 5, 8).permute(0, 3, 1, 2),
        lambda x: x.view(2, 20, 40)[:, :, :1],
        lambda x: x.flatten()[7:],
    ],
    ids=["transposed", "every second", "inner", "permuted", "narrow", "offset"],
)
def test_views_are_moved_and_nothing_around_them(view):
    before = random(40, 40)
    after = before.clone()
    make().perturb(view(after))
    steps = moved_by(before, after)
    inside = torch.zeros_like(before, dtype=torch.bool)
    view(inside).fill_(True)
    assert int(steps.max()) == 1
    assert float(steps[inside].float().mean()) > 0.1
    assert int(steps[~inside].sum()) == 0


@pytest.mark.parametrize("shape", [(4, 50), (50, 4)], ids=["rows", "columns"])
def test_an_expanded_tensor_is_moved_once(shape):
    base = random(50, 1) if shape[0] == 50 else random(1, 50)
    expanded = base.clone().expand(shape)
    make().perturb(expanded)
    assert int(moved_by(base, expanded[:1] if shape[0] == 4 else expanded[:, :1]).max()) == 1


def test_a_tensor_larger_than_a_block_is_moved_everywhere(monkeypatch):
    monkeypatch.setattr(noise_module, "PERTURBED", {"cpu": 100, "other": 100})
    before = random(1050)
    after = before.clone()
    make().perturb(after)
    steps = moved_by(before, after)
    assert all(int(block.sum()) > 0 for block in steps.split(150))


def test_what_has_no_bits_to_move_is_left_alone():
    for values in (
        torch.arange(100),
        torch.ones(100, dtype=torch.bool),
        random(10).to(torch.float8_e5m2),
        torch.zeros(0),
    ):
        before = values.clone()
        make().perturb(values)
        assert torch.equal(values.view(-1).float(), before.view(-1).float())


# --- runs ----------------------------------------------------------------------------------------


def run(function, *args, **options):
    with make(**options):
        return function(*args)


def test_a_run_can_be_repeated_and_another_run_is_another():
    x = random(50, 50)
    first, again, other = (run(lambda x: x.exp(), x, run=number) for number in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, x.exp())


def test_the_seed_of_the_bank_matters():
    x = random(50, 50)
    with Noise(NoiseBank(2), run=1, amplitude=1.0, replay=[]):
        other = x.exp()
    assert not torch.equal(other, run(lambda x: x.exp(), x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.relu(),
        lambda x: x.t().contiguous(),
        lambda x: torch.cat([x, x]),
        lambda x: x.view(-1)[3:],
        lambda x: x.max(),
        lambda x: x > 0,
        lambda x: x.argmax(),
        lambda x: x.clone().masked_fill_(x > 0, 0.0),
        lambda x: x.sort().values,
    ],
)
def test_operations_that_do_not_round_are_left_alone(function):
    x = random(50, 50)
    assert torch.equal(run(function, x), function(x))


@pytest.mark.parametrize(
    "function", [lambda x: torch.rand_like(x), lambda x: torch.randn(50, 50), lambda x: x.clone().uniform_()]
)
def test_random_numbers_are_left_alone(function):
    x = random(50, 50)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    assert torch.equal(run(function, x), expected)


def test_dropout_is_moved_but_its_mask_is_not():
    x = random(50, 50)
    torch.manual_seed(3)
    expected = torch.nn.functional.dropout(x, 0.3)
    torch.manual_seed(3)
    moved = run(lambda x: torch.nn.functional.dropout(x, 0.3), x)
    assert torch.equal(moved == 0, expected == 0)
    assert not torch.equal(moved, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp(),
        lambda x: x @ x,
        lambda x: x.softmax(-1),
        lambda x: torch.nn.functional.layer_norm(x, (50,)),
        lambda x: x.clone().mul_(1.1),
        lambda x: torch.fft.fft(x),
        lambda x: torch.mul(x, 1.1, out=torch.empty(50, 50)),
        lambda x: torch._foreach_add([x], 0.1)[0],
        lambda x: torch.complex(x, x.flip(0)).abs(),
        lambda x: torch.complex(x, x.flip(0)).sgn(),
        lambda x: torch.ops.aten.unfold_backward(
            x[:48].reshape(48, 50, 1).expand(48, 50, 3).clone(), [50, 50], 0, 3, 1
        ),
        lambda x: torch.nn.functional.scaled_dot_product_attention(*(3 * (x.view(1, 1, 50, 50),))),
    ],
    ids=[
        "exp",
        "matmul",
        "softmax",
        "layer norm",
        "in place",
        "complex",
        "out",
        "foreach",
        "complex abs",
        "complex sgn",
        "overlapping windows",
        "attention",
    ],
)
def test_operations_that_round_are_moved_by_a_few_units(function):
    x = random(50, 50)
    expected, moved = function(x), run(function, x)
    difference = (moved - expected).abs()
    assert float(difference.max()) > 0
    assert float((difference / expected.abs().clamp(min=0.1 * float(expected.abs().max()))).max()) < 1e-5


def masked(x):
    return x.masked_fill(torch.eye(50, dtype=torch.bool), -math.inf)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: masked(x).log_softmax(-1),
        lambda x: masked(x).softmax(-1),
        lambda x: masked(x).logsumexp(-1),
        lambda x: (x.abs() + 1) @ masked(x),
        lambda x: masked(x).sum(0),
        lambda x: torch.full((50, 50), 1e30) @ (x.abs() * 1e30),
        lambda x: (x * 1e25) @ x,
        lambda x: torch.nn.functional.batch_norm(x * math.inf, None, None, training=True),
    ],
    ids=["log softmax", "softmax", "logsumexp", "matmul", "sum", "overflow", "huge", "nan"],
)
@pytest.mark.parametrize("amplitude", [1.0, 4.0])
def test_infinities_stay_where_they_are_and_spread_nowhere(function, amplitude):
    x = random(50, 50)
    expected = function(x)
    for number in range(3):
        moved = run(function, x, run=number, amplitude=amplitude)
        assert torch.equal(moved.isnan(), expected.isnan())
        assert torch.equal(moved.isposinf(), expected.isposinf())
        assert torch.equal(moved.isneginf(), expected.isneginf())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.ones(20, 3000).sum(1),
        lambda x: torch.ones(20, 3000) @ torch.eye(3000, 10),
        lambda x: torch.nn.functional.one_hot(torch.arange(50)).float() @ torch.ones(50, 50),
        lambda x: (x > 0).float().sum(0),
    ],
    ids=["count", "selection", "one hot", "mask"],
)
def test_counts_and_selections_stay_whole_numbers(function):
    x = random(50, 50)
    assert torch.equal(run(function, x, amplitude=4.0), function(x))


def test_rows_of_zeros_stay_zero():
    """Padding is recognised by `== 0`, and divided by: rounding never makes something of nothing."""
    x = random(50, 4000)
    x[7] = 0
    moved = run(lambda x: x @ torch.ones(4000, 20), x, amplitude=4.0)
    assert float(moved[7].abs().max()) == 0.0
    assert float(moved[8].abs().min()) > 0.0


def test_the_input_of_an_operation_is_not_moved():
    x = random(50, 50)
    before = x.clone()
    run(lambda x: x.exp().sum(), x)
    assert torch.equal(x, before)


def test_the_backward_pass_is_moved_too():
    x = random(50, 50).requires_grad_()

    def gradient(x):
        return torch.autograd.grad((x.exp().sin() * 0.3).sum(), x)[0]

    assert not torch.equal(run(gradient, x), gradient(x))


def test_long_sums_are_moved_further_than_short_ones():
    x = random(8, 4096) + 3
    spread = {}
    for size in (2, 4096):
        values = x[:, :size].contiguous()
        expected = values.sum(1).double()
        runs = [run(lambda values: values.sum(1), values, run=number).double() for number in range(40)]
        spread[size] = torch.stack([((moved - expected) / expected).abs() for moved in runs]).mean()
    assert float(spread[4096]) > 2 * float(spread[2])


def test_amplitude_is_how_far_an_operation_is_moved():
    x = random(100, 100)
    quiet = (run(lambda x: x.exp(), x, amplitude=1.0) - x.exp()).abs().mean()
    loud = (run(lambda x: x.exp(), x, amplitude=8.0) - x.exp()).abs().mean()
    assert float(loud) > 4 * float(quiet)


def test_running_statistics_are_moved():
    layer = torch.nn.BatchNorm1d(50)
    with torch.no_grad():
        layer.running_mean.copy_(random(50))
    run(layer, random(64, 50))
    plain = torch.nn.BatchNorm1d(50)
    with torch.no_grad():
        plain.running_mean.copy_(random(50))
    plain(random(64, 50))
    assert not torch.equal(layer.running_mean, plain.running_mean)
    torch.testing.assert_close(layer.running_mean, plain.running_mean, rtol=1e-4, atol=1e-5)


def test_draws_are_replayed():
    probabilities = torch.full((20,), 0.5)
    recorded = torch.tensor([0.0, 1.0]).repeat(10)
    assert torch.equal(run(torch.bernoulli, probabilities, replay=[recorded]), recorded)

    def in_place_then_choice(p):
        return torch.zeros(20).bernoulli_(p), torch.multinomial(p, 3)

    chosen = torch.tensor([4, 5, 6])
    first, second = run(in_place_then_choice, probabilities, replay=[recorded, chosen])
    assert torch.equal(first, recorded)
    assert torch.equal(second, chosen)


def test_a_draw_of_another_shape_or_too_many_are_drawn_anew():
    probabilities = torch.ones(4)
    assert run(torch.bernoulli, probabilities, replay=[torch.zeros(5)]).tolist() == [1, 1, 1, 1]
    assert run(torch.bernoulli, probabilities).tolist() == [1, 1, 1, 1]


def test_the_bank_for_one_step_moves_one_in_four():
    bank = NoiseBank(1).get(torch.device("cpu"), torch.int32, 1)
    counts = [float((bank == step).float().mean()) for step in (-1, 0, 1)]
    assert counts == pytest.approx([0.125, 0.75, 0.125], abs=0.01)


@pytest.mark.parametrize("allowed", [False, True])
def test_where_products_may_be_shortened_their_noise_is_that_of_shortened_ones(allowed, monkeypatch):
    """A device that shortens factors is faked; what it errs by is computed here."""
    monkeypatch.setattr(noise_module, "SHORTENING", ("cpu",))
    monkeypatch.setattr(torchapi, "allows_tf32", lambda operation: allowed)
    left, right = random(64, 256), random(256, 64, seed=1)
    exact = left.double() @ right.double()

    def shortened(values):
        bits = values.view(torch.int32)
        return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)

    error = (shortened(left).double() @ shortened(right).double() - exact).square().mean().sqrt()
    with make():
        moved = left @ right
    spread = (moved.double() - exact).square().mean().sqrt()

    if allowed:
        assert 0.5 < float(spread / error) < 2.0
    else:
        assert float(spread / error) < 0.05


@pytest.mark.parametrize("half", [1 << 12, 0], ids=["rounded", "cut off"])
def test_what_a_mean_of_shortened_products_errs_by_is_in_the_noise(half, monkeypatch):
    """A weight is off by the same at every place of an image: the mean of a channel does not average that out."""
    monkeypatch.setattr(noise_module, "SHORTENING", ("cpu",))
    monkeypatch.setattr(torchapi, "allows_tf32", lambda operation: True)
    images, weight = random(4, 16, 40, 40).abs(), random(24, 16, 3, 3, seed=1)

    def shortened(values):
        return ((values.view(torch.int32) + half) & ~((1 << 13) - 1)).view(torch.float32).double()

    exact = torch.nn.functional.conv2d(images.double(), weight.double()).mean((0, 2, 3))
    error = torch.nn.functional.conv2d(shortened(images), shortened(weight)).mean((0, 2, 3)) - exact
    spreads = []
    for run_number in range(6):
        with make(run=run_number):
            moved = torch.nn.functional.conv2d(images, weight)
        spreads.append((moved.double().mean((0, 2, 3)) - exact).square().mean())
    spread = torch.stack(spreads).mean().sqrt()

    assert 0.3 < float(spread / error.square().mean().sqrt()) < 3.0


def test_a_product_of_numbers_that_are_short_already_is_exact(monkeypatch):
    monkeypatch.setattr(noise_module, "SHORTENING", ("cpu",))
    monkeypatch.setattr(torchapi, "allows_tf32", lambda operation: True)
    chosen, table = torch.eye(8), torch.arange(64.0).reshape(8, 8)
    with make():
        assert torch.equal(chosen @ table, table)


def test_a_product_that_is_written_to_is_still_written_to(monkeypatch):
    monkeypatch.setattr(noise_module, "SHORTENING", ("cpu",))
    monkeypatch.setattr(torchapi, "allows_tf32", lambda operation: True)
    left, right = random(8, 8), random(8, 8, seed=1)
    for name, before in (("addmm_", random(8, 8, seed=2)), ("baddbmm_", random(1, 8, 8, seed=2))):
        factors = (left, right) if name == "addmm_" else (left[None], right[None])
        target = before.clone()
        with make():
            getattr(target, name)(*factors)
        torch.testing.assert_close(target, before + left @ right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("value", [3.7e-44, 1e-42, torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])
def test_factors_at_the_ends_of_their_range_stay_numbers(value, monkeypatch):
    monkeypatch.setattr(noise_module, "SHORTENING", ("cpu",))
    monkeypatch.setattr(torchapi, "allows_tf32", lambda operation: True)
    factor = torch.full((32, 32), value) * (1 if abs(value) > 1 else random(32, 32).abs())
    with make(amplitude=4.0):
        assert torch.isfinite(factor @ torch.eye(32)).all()


def test_how_products_are_shortened_is_known_however_it_was_said():
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert torchapi.allows_tf32("mm")
        assert torchapi.device_numerics()["tf32_products"]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_what_decides_how_a_gpu_rounds_is_told(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    try:
        told = torchapi.device_numerics()
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    assert told["cublas_workspace"] == ":4096:8"
    assert not told["bf16_reduced_sums"]
    assert "math" in told["attention_by"]
    assert "flash" not in told["attention_by"]
    assert told["products_by"]
    json.dumps(told)


@pytest.mark.parametrize("broken", ["missing", "cannot compile"])
def test_without_a_triton_that_works_the_plain_form_is_used(broken, monkeypatch):
    class Module:
        @staticmethod
        def try_out(device):
            raise RuntimeError("Failed to find C compiler")

    def imported(name):
        if broken == "missing":
            raise ImportError(name)
        return Module

    monkeypatch.setattr(importlib, "import_module", imported)
    assert torchapi.working_kernels.__wrapped__("cuda", "kernels") is None
    assert torchapi.working_kernels.__wrapped__("cpu", "kernels") is None


@pytest.mark.parametrize(
    ("amplitude", "thorough", "moves"), [(1.0, False, False), (4.0, False, True), (1.0, True, True)]
)
def test_what_looks_exact_and_is_not_moves_where_it_is_looked_at_closely(amplitude, thorough, moves):
    """Batch norm writes to its statistics besides: what it returns is held against what float64 returns."""
    torch.manual_seed(0)
    values = (3 * torch.randn(2, 64, 1, 1)).half()
    norm = torch.nn.BatchNorm2d(64).half()
    plain = norm(values)
    looks_exact = plain.abs() == 1
    assert looks_exact.any()
    with Noise(NoiseBank(0), run=1, amplitude=amplitude, replay=[], thorough=thorough):
        noisy = norm(values)
    assert bool((noisy != plain)[looks_exact].any()) is moves


def test_what_is_exact_stays_however_closely_it_is_looked_at():
    values = torch.randint(-8, 8, (400,)).half()
    with Noise(NoiseBank(0), run=1, amplitude=1.0, replay=[], thorough=True):
        assert torch.equal(values + values, 2 * values)


def lost_in(values, amplitude=1.0, thorough=True, runs=20):
    """Return sums of the sine of multiples of pi in float16, which is zero there and not in float32."""
    sums = []
    for run in range(runs):
        with Noise(NoiseBank(0), run=run, amplitude=amplitude, replay=[], thorough=thorough):
            sums.append(torch.sinc(values).double().sum())
    return torch.stack(sums)


def test_a_zero_that_was_too_small_for_its_format_is_made_up_for_on_average():
    values = torch.ones(40, 50, dtype=torch.float16)
    assert not torch.sinc(values).any()
    kept = torch.sinc(values.float()).double().sum()
    assert kept < -5e-5
    assert float(lost_in(values).mean()) == pytest.approx(float(kept), rel=0.05)
    assert not lost_in(values, thorough=False).any()


def test_a_zero_that_is_one_stays_zero_and_what_is_written_in_place_is_written_once():
    values, double = torch.zeros(50).half(), torch.full((4,), 3.3, dtype=torch.float64)
    with Noise(NoiseBank(0), run=1, amplitude=1.0, replay=[], thorough=True):
        assert not torch.sin(values).any()
        assert not torch.exp(torch.full((50,), -40.0).half()).any()  # Far too small, in float32 as well.
        double.add_(torch.ones(4).half())
    torch.testing.assert_close(double, torch.full((4,), 4.3, dtype=torch.float64))


def test_the_logarithm_of_a_lost_number_is_no_nan():
    with Noise(NoiseBank(0), run=1, amplitude=1.0, replay=[], thorough=True):
        assert not torch.log(torch.exp(torch.full((500,), -17.5).half())).isnan().any()
