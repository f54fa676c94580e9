"""From outputs to gradients: a projection that reaches everything, a mean, or the user's own loss."""

from types import SimpleNamespace

import pytest
import torch

from torchparity.errors import UsageError
from torchparity.request import PROJECTION
from torchparity.run.loss import MEAN, reduce_to_mean, scalar_loss, tangents_of


def backward(outputs, loss, *, seed):
    """What a run does after its forward pass."""
    if loss != PROJECTION:
        return scalar_loss(outputs, loss)
    tensors, tangents = tangents_of(outputs, seed=seed)
    if tensors:
        torch.autograd.backward(tensors, tangents)
    return None


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype, requires_grad=True)


def gradient(outputs, values, loss=PROJECTION, seed=0):
    values.grad = None
    found = backward(outputs, loss, seed=seed)
    return found, values.grad


def test_the_projection_has_a_gradient_where_the_mean_has_none():
    x = leaf(4, 8)
    _, projected = gradient(x.softmax(-1), x)
    _, averaged = gradient(x.softmax(-1), x, MEAN)
    assert float(projected.abs().min()) > 1e-6
    assert float(averaged.abs().max()) < 1e-6


def test_the_projection_is_repeated_by_its_seed():
    x = leaf(3)
    gradients = [gradient(x * 2, x, seed=seed)[1] for seed in (1, 1, 2)]
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])


def test_the_projection_leaves_the_global_generator_alone():
    x = leaf(3)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    gradient(x * 2, x)
    assert torch.equal(torch.rand(1), expected)


def test_every_output_is_projected_and_none_is_alike():
    x, y = leaf(3), leaf(3)
    outputs = {"a": x * 1, "b": [y * 1, torch.ones(2), 3, None, torch.ones(2, dtype=torch.long)]}
    backward(outputs, PROJECTION, seed=0)
    assert not torch.equal(x.grad, y.grad)
    assert float(x.grad.abs().min()) > 0
    assert float(y.grad.abs().min()) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_tangents_have_the_dtype_of_the_output(dtype):
    x = leaf(3, dtype=dtype)
    _, found = gradient(x * 1, x)
    assert found.dtype == dtype
    if dtype == torch.complex64:
        assert float(found.imag.abs().min()) > 0


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_output_is_projected(layout):
    x = torch.eye(3, requires_grad=True)
    _, found = gradient(x.to_sparse(layout=layout), x)
    assert float(found.to_dense().diagonal().abs().min()) > 0


def test_a_nested_output_is_projected():
    x = leaf(3)
    outputs = torch.nested.as_nested_tensor([x * 2, x[:2] * 3], layout=torch.jagged)
    _, found = gradient(outputs, x)
    assert float(found.abs().min()) > 0


def test_outputs_without_a_gradient_are_no_error():
    assert backward([torch.ones(1), None, 3], PROJECTION, seed=0) is None
    assert backward(torch.ones(4), MEAN, seed=0).item() == 1.0


def test_a_loss_of_ones_own():
    x = leaf(3)
    value, found = gradient(x, x, lambda outputs: (outputs * 2).sum())
    assert not value.requires_grad
    assert value.item() == pytest.approx(2 * x.sum().item())
    assert found.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs: outputs, r"a tensor of shape \(3,\)"),
        (lambda outputs: 3.0, "a float"),
        (lambda outputs: None, "is None"),
    ],
)
def test_a_loss_that_is_not_one_number_is_a_usage_error(loss, message):
    with pytest.raises(UsageError, match=message) as caught:
        backward(leaf(3), loss, seed=0)
    assert "scalar tensor" in caught.value.hint


# --- the mean ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (torch.tensor([1.0, 3.0]), 2.0),
        ([torch.tensor([1.0, 3.0]), torch.tensor(4.0)], 3.0),
        ({"a": torch.tensor(1.0), "b": (torch.tensor(2.0), torch.tensor(4.0))}, 2.0),
        (SimpleNamespace(logits=torch.tensor([5.0, 7.0])), 6.0),
        (torch.distributions.Normal(torch.tensor([1.0, 2.0]), 1.0), 3.0),
        ([torch.tensor(2.0), None], 1.0),
        ([torch.tensor(2.0), torch.tensor(4.0, dtype=torch.bfloat16)], 3.0),
        ([torch.tensor(2.0), torch.tensor([4, 4])], 3.0),
    ],
)
def test_the_mean_of_anything(outputs, expected):
    assert reduce_to_mean(outputs).item() == pytest.approx(expected)


@pytest.mark.parametrize("outputs", [3, "text", object(), [], {}, [None], None, [3]])
def test_what_has_no_mean_is_a_usage_error(outputs):
    with pytest.raises(UsageError) as caught:
        reduce_to_mean(outputs)
    assert "loss of your own" in caught.value.hint
