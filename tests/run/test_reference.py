"""The float64 reference: shadows are what a true float64 run gives, and eager's own decisions are kept."""

import contextlib
import copy

import pytest
import torch
from torch.nn import functional

from torchparity.run.reference import NeedsPlainKernels, Reference, plain_kernels
from torchparity.run.shadows import Shadows
from torchparity.torchapi.compilers import is_out_of_memory

# One float64 rounding or so: far below what float32 could give by chance.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def shadowed(function, *args):
    """Run a function with shadows; return its result, the float64 value of it, and the reference."""
    reference = Reference()
    with reference:
        result = function(*args)
    return result, reference.value(result), reference


def agrees(function, *args):
    """Assert that the shadow of a result is what the function gives in float64, and eager's value is untouched."""
    expected = function(*(arg.clone() for arg in args))
    result, shadow, reference = shadowed(function, *(arg.clone() for arg in args))
    wide = [arg.double() if arg.is_floating_point() else arg.clone() for arg in args]
    assert torch.equal(result, expected)
    assert shadow.dtype == torch.float64
    torch.testing.assert_close(shadow, function(*wide).double(), **EXACT)
    assert not torch.equal(shadow, result.double())
    assert not reference.unpromoted


def through_views(x):
    y = x * 1.1
    y.t()[1:, ::2].mul_(0.3).add_(0.7)
    y.view(-1)[5:].sigmoid_()
    y[0] = y[1].exp()
    return y


def with_out(x):
    result = torch.empty(8, 8)
    if x.dtype == torch.float64:
        result = result.double()
    torch.mul(x, 1.1, out=result)
    return result.sin()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x @ x,
        through_views,
        with_out,
        lambda x: x.softmax(-1).log(),
        lambda x: functional.layer_norm(x, (8,)),
        lambda x: functional.gelu(x).t() @ x,
        lambda x: torch.cat([x, x * 0.1])[2:10].cumsum(0),
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: (x * 3).sort().values.diff(),
        lambda x: functional.conv2d(x.view(1, 1, 8, 8), x[:3, :3].reshape(1, 1, 3, 3)),
        lambda x: torch._foreach_add([x, x.exp()], 0.1)[1] * 1.1,
        lambda x: torch.view_as_real(torch.view_as_complex((x * 1.1).view(8, 4, 2)) ** 2).reshape(8, 8),
        lambda x: torch.view_as_complex((x * 1.1).view(8, 4, 2)).conj().imag * 1.3,
        lambda x: (x * 0.1).to(torch.float64).sin() if x.dtype == torch.float64 else (x * 0.1).sin(),
        lambda x: x.new_zeros(8, 8).index_add_(0, torch.arange(8), x * 0.1),
        lambda x: x.clone().masked_scatter_(x > 0, x.exp()),
    ],
)
def test_shadows_are_a_true_float64_run(function):
    agrees(function, random(8, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_inside_the_model_are_promoted(dtype):
    x = random(8, 8)
    _, shadow, _ = shadowed(lambda x: (x.to(dtype) @ x.to(dtype)).float().exp(), x)
    torch.testing.assert_close(shadow, (x.double() @ x.double()).exp(), **EXACT)


def test_a_result_in_eight_bits_has_a_shadow():
    x = random(8, 8)
    _, shadow, _ = shadowed(lambda x: (x * 1.1).to(torch.float8_e4m3fn), x)
    torch.testing.assert_close(shadow, x.double() * 1.1, **EXACT)


def test_autocast_is_promoted():
    x = random(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, shadow, _ = shadowed(lambda x: x @ x, x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(shadow, x.double() @ x.double(), **EXACT)


def test_integers_that_become_floats_are_divided_in_float64():
    _, shadow, _ = shadowed(lambda x: x / 3, torch.arange(8))
    assert torch.equal(shadow, torch.arange(8).double() / 3)
    _, shadow, _ = shadowed(lambda x: x.float() / 3, torch.arange(8))
    assert torch.equal(shadow, torch.arange(8).double() / 3)
    _, shadow, _ = shadowed(lambda x: x.float().mean(), torch.arange(7))
    assert shadow.item() == 3.0


def test_what_was_not_computed_is_its_own_value_and_float64_has_no_shadow():
    reference = Reference()
    values = random(3)
    assert torch.equal(reference.value(values), values.double())
    assert reference.value(values.double()) is None
    assert reference.value(torch.arange(3)) is None


def trained(model, x, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sin().sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    ],
    ids=["sgd", "adamw", "foreach", "fused"],
)
def test_gradients_and_optimizer_steps_are_a_true_float64_run(make):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    wide = copy.deepcopy(model).double()
    x = random(4, 8)
    reference = Reference()
    with reference:
        trained(model, x, make(model.parameters()))
    trained(wide, x.double(), make(wide.parameters()))
    for narrow, expected in zip(model.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(reference.value(narrow), expected.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(reference.value(narrow.grad), expected.grad, rtol=1e-9, atol=1e-9)
    assert not reference.unpromoted


LAYERS = {
    "linear": (lambda: torch.nn.Linear(4, 4), (2, 4)),
    "relu in place": (lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True)), (8, 4)),
    "convolution": (lambda: torch.nn.Conv2d(2, 3, 3), (1, 2, 5, 5)),
    "transposed convolution": (lambda: torch.nn.ConvTranspose2d(2, 3, 3, stride=2), (1, 2, 5, 5)),
    "max pool": (lambda: torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3), torch.nn.MaxPool2d(2)), (1, 2, 8, 8)),
    "batch norm": (lambda: torch.nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "instance norm": (lambda: torch.nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 3, 3)),
    "group norm": (lambda: torch.nn.GroupNorm(2, 4), (2, 4, 3)),
    "weight norm": (lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), (2, 4)),
    "spectral norm": (lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4)), (2, 4)),
    "gru": (lambda: torch.nn.GRU(4, 4), (3, 2, 4)),
    "lstm": (lambda: torch.nn.LSTM(4, 4, bidirectional=True), (3, 2, 4)),
    "attention": (lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (2, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients_are_a_true_float64_run(name):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    narrow = make()
    wide = copy.deepcopy(narrow).double()
    x, tangents = random(*shape), random(4096, seed=1)

    def results(layer, x):
        x = x.clone().requires_grad_()
        output = layer(x)
        output = output[0] if isinstance(output, tuple) else output
        tangent = tangents[: output.numel()].view(output.shape)
        output.backward(tangent if output.dtype == tangent.dtype else tangent.to(output.dtype))
        buffers = [buffer for buffer in layer.buffers() if buffer.is_floating_point()]
        return [output.detach(), x.grad, *(parameter.grad for parameter in layer.parameters()), *buffers]

    reference = Reference(plain=True)
    with plain_kernels() if name == "lstm" else contextlib.nullcontext(), reference:
        found = results(narrow, x)
    for value, expected in zip(found, results(wide, x.double()), strict=True):
        torch.testing.assert_close(reference.value(value), expected, rtol=1e-9, atol=1e-10)
    assert not reference.unpromoted


def test_the_direction_of_a_complex_number_is_no_decision():
    """`sgn` jumps for real numbers only; for complex ones it is x / |x|, which rounds like anything else."""

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(torch.complex(x, x * 3).abs().sum(), x)[0]

    x = random(8)
    _, shadow, _ = shadowed(gradient, x)
    torch.testing.assert_close(shadow, gradient(x.double()), **EXACT)


def test_running_statistics_that_are_written_silently_have_shadows():
    layer = torch.nn.BatchNorm2d(3)
    wide = copy.deepcopy(layer).double()
    x = random(4, 3, 5, 5)
    result, shadow, reference = shadowed(lambda x: layer(layer(x)), x)
    expected = wide(wide(x.double()))
    torch.testing.assert_close(shadow, expected, **EXACT)
    for name in ("running_mean", "running_var"):
        value = reference.value(getattr(layer, name))
        torch.testing.assert_close(value, getattr(wide, name), **EXACT)
        assert not torch.equal(value, getattr(layer, name).double())
    assert torch.equal(layer.num_batches_tracked, wide.num_batches_tracked)
    assert result.dtype == torch.float32


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_dropout_has_eagers_own_mask(probability):
    x = random(20, 20).requires_grad_()
    torch.manual_seed(3)
    result, shadow, _ = shadowed(lambda x: functional.dropout(x * 1.1, probability), x)
    assert torch.equal(shadow == 0, result == 0)
    kept = result != 0
    assert bool(kept.any()) == (probability < 1)
    scale = 1.1 / (1 - probability) if probability < 1 else 0.0
    torch.testing.assert_close(shadow[kept], x.detach().double()[kept] * scale, **EXACT)


def test_dropout_that_is_told_not_to_train_keeps_everything():
    x = random(20)
    result, shadow, _ = shadowed(lambda x: torch.native_dropout(x * 1.1, 0.5, False)[0], x)
    assert torch.equal(result, x * 1.1)
    torch.testing.assert_close(shadow, x.double() * 1.1, **EXACT)


def test_random_numbers_are_eagers_own():
    result, shadow, reference = shadowed(lambda x: torch.rand(8) * 3, random(8))
    torch.testing.assert_close(shadow.float(), result)
    assert reference.random_operations["rand"] == 1


def test_decisions_are_eagers_own():
    """In float32 the product rounds up to 1, in float64 it does not: the reference goes with eager."""
    x = torch.tensor([0.1])
    result, shadow, _ = shadowed(lambda x: (x * 10).floor(), x)
    assert result.item() == shadow.item()
    third = torch.tensor([1.0]) / 3
    result, shadow, _ = shadowed(lambda x: torch.where(x * 3 >= 1, x * 5, x * 7), third)
    assert abs(shadow.item() - result.item()) < 1e-6


def test_the_reference_stands_on_eagers_side_of_a_kink():
    x = torch.tensor([1.0, -1.0], requires_grad=True)

    def gradient(x):
        y = (x * 1e-30 * 1e-30).relu()
        return torch.autograd.grad(y.sum(), x)[0]

    result, shadow, _ = shadowed(gradient, x)
    assert (shadow[0] == 0) == (result[0] == 0)


def test_an_lstm_asks_for_plain_kernels_and_has_shadows_with_them():
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 4)
    x = random(3, 2, 4)
    wide = copy.deepcopy(layer).double()
    with torch.no_grad():
        expected = wide(x.double())[0]
        with plain_kernels():
            _, shadow, reference = shadowed(lambda x: layer(x)[0], x)
    torch.testing.assert_close(shadow, expected, **EXACT)
    assert not reference.unpromoted


def test_an_opaque_kernel_ends_the_run_unless_told_otherwise():
    layer = torch.nn.LSTM(4, 4)
    with torch.no_grad():
        names = operators_of(lambda: layer(random(3, 2, 4)))
        if "mkldnn_rnn_layer" not in names:
            pytest.skip("this build of torch has no fused recurrence")
        with pytest.raises(NeedsPlainKernels, match="mkldnn_rnn_layer"), Reference():
            layer(random(3, 2, 4))


def operators_of(function):
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func._schema.name.split("::")[-1])
            return func(*args, **(kwargs or {}))

    with Listen():
        function()
    return names


def test_plain_kernels_puts_everything_back():
    before = (torch._C._get_mkldnn_enabled(), torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled())
    with plain_kernels():
        assert not torch._C._get_mkldnn_enabled()
        assert not torch.backends.cudnn.enabled
    after = (torch._C._get_mkldnn_enabled(), torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled())
    assert after == before


def test_a_sparse_product_goes_through():
    dense = random(6, 6).relu()
    result, shadow, _ = shadowed(lambda x: torch.sparse.mm((x * 1.1).to_sparse(), x) * 1.1, dense)
    expected = ((dense.double() * 1.1) @ dense.double()) * 1.1
    torch.testing.assert_close(shadow, expected, rtol=1e-5, atol=1e-5)
    assert result.dtype == torch.float32


@torch.library.custom_op("parity_reference_tests::singles_only", mutates_args=())
def singles_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise RuntimeError("float32 only")
    return x * 2


@torch.library.custom_op("parity_reference_tests::asserts_singles", mutates_args=())
def asserts_singles(x: torch.Tensor) -> torch.Tensor:
    assert x.dtype == torch.float32
    return x * 2


@torch.library.custom_op("parity_reference_tests::doubles_in_place", mutates_args=("x",))
def doubles_in_place(x: torch.Tensor) -> None:
    if x.dtype != torch.float32:
        raise RuntimeError("float32 only")
    x.mul_(2)


@pytest.mark.parametrize("operator", [singles_only, asserts_singles], ids=["RuntimeError", "AssertionError"])
def test_an_operator_without_float64_is_named_and_the_run_goes_on(operator):
    x = random(8)
    result, shadow, reference = shadowed(lambda x: operator(x * 1.1).exp(), x)
    assert reference.unpromoted == {operator._name.split("::")[-1]: 1}
    assert torch.equal(result, ((x * 1.1) * 2).exp())
    torch.testing.assert_close(shadow, ((x * 1.1) * 2).double().exp(), **EXACT)


def test_an_operator_without_float64_that_writes_leaves_eagers_value():
    def function(x):
        y = x * 1.1
        doubles_in_place(y)
        return y

    result, shadow, reference = shadowed(function, random(8))
    assert reference.unpromoted == {"doubles_in_place": 1}
    assert torch.equal(shadow, result.double())


# --- what depends on random numbers --------------------------------------------------------------


def test_what_comes_from_a_random_number_is_marked_and_nothing_else():
    reference = Reference()
    x = random(4, 4)
    with reference:
        drawn = torch.rand(4, 4)
        derived = (x + drawn).t()[1:].exp()
        tokens = torch.randint(0, 4, (4,))
        looked_up = functional.embedding(tokens, x)
        written = x * 2
        written.add_(drawn)
        independent = x.exp() @ x
        decided = drawn > 0.5
    assert all(map(reference.is_random, (drawn, derived, tokens, looked_up, written, decided)))
    assert not any(map(reference.is_random, (x, independent)))


def test_nothing_is_random_where_nothing_is_drawn():
    x = random(4)
    reference = Reference()
    with reference:
        result = x.exp()
    assert not reference.random_operations
    assert not reference.is_random(result)


def attention(x):
    return functional.scaled_dot_product_attention(x, x, x)


def test_attention_without_dropout_is_not_random():
    """Its operators carry torch's tag for random ones, because they could drop: with dropout_p=0 they do not."""
    result, _, reference = shadowed(attention, random(1, 2, 4, 8))
    assert not reference.is_random(result)
    assert not reference.random_operations


def test_attention_without_dropout_has_a_shadow():
    x = random(1, 2, 4, 8)
    _, shadow, _ = shadowed(attention, x)
    torch.testing.assert_close(shadow, attention(x.double()), **EXACT)


def test_a_new_storage_at_an_old_place_is_not_random():
    reference = Reference()
    with reference:
        for _ in range(20):
            drawn = torch.rand(64)
            assert reference.is_random(drawn)
            del drawn
            fresh = torch.zeros(64) + 1
            assert not reference.is_random(fresh)
            del fresh


def test_draws_are_kept_for_replay():
    reference = Reference()
    with reference:
        mask = torch.bernoulli(torch.full((8,), 0.5))
        chosen = torch.multinomial(torch.ones(8), 2)
        mask.zero_()
    assert len(reference.draws) == 2
    assert torch.equal(reference.draws[1], chosen)
    assert int(reference.draws[0].sum()) >= 0
    assert reference.draws[0].data_ptr() != mask.data_ptr()


# --- shadows -------------------------------------------------------------------------------------


def test_a_shadow_belongs_to_the_storage():
    shadows = Shadows()
    base = random(4, 4)
    shadows.write(base, base.double() + 1e-9)
    assert torch.equal(shadows.read(base[1:].t()), (base.double() + 1e-9)[1:].t())
    shadows.materialise(base[2]).zero_()
    assert int(shadows.read(base)[2].abs().sum()) == 0


def test_a_shadow_dies_with_its_storage():
    shadows = Shadows()
    for _ in range(10):
        values = random(8)
        shadows.write(values, values.double() + 1)
        del values
        assert not shadows.has(torch.zeros(8))
    shadows._sweep()
    assert shadows._entries == {}


def test_a_forgotten_shadow_is_gone():
    shadows = Shadows()
    values = random(4)
    shadows.write(values, values.double() + 1)
    shadows.forget(values)
    assert torch.equal(shadows.read(values), values.double())


def test_materialising_a_view_shadows_the_whole_storage():
    shadows = Shadows()
    base = random(4, 4)
    shadows.materialise(base[1, 2:])[0] = 5.0
    expected = base.double()
    expected[1, 2] = 5.0
    assert torch.equal(shadows.read(base), expected)


def test_conjugates_are_read_as_what_they_are():
    shadows = Shadows()
    values = torch.complex(random(4), random(4, seed=1))
    shadows.write(values, values.to(torch.complex128))
    assert torch.equal(shadows.read(values.conj()), values.to(torch.complex128).conj())
    assert torch.equal(shadows.read(values.conj().imag), -values.imag.double())


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
    ],
)
def test_out_of_memory_is_recognised(error, memory):
    assert is_out_of_memory(error) is memory
