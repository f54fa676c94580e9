"""State: everything a run can change is put back, in place, and the owner gets the model back as it was."""

import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchparity.run.python_state import refill
from torchparity.run.state import CallInputs, ModelState, RandomState, Snapshot


@dataclass
class Statistics:
    calls: int = 0


class Everything(torch.nn.Module):
    """A model that changes everything it can reach."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
        self.register_buffer("running", torch.zeros(3))
        self.register_buffer("bound", torch.zeros(3))
        self.count = 0
        self.history = []
        self.cache = {"seen": 0}
        self.queue = deque([1], maxlen=3)
        self.words = {"a"}
        self.nested = {"inner": [torch.zeros(2)]}
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, tokens):
        with torch.no_grad():
            self.running += 1
            self.embedding.weight += 1
            self.nested["inner"][0] += 1
        self.bound = self.bound + 1
        self.count += 1
        self.history.append(self.count)
        self.cache["seen"] += 1
        self.cache["new"] = torch.ones(1)
        self.queue.append(2)
        self.words.add("b")
        self.late = 1
        return torch.rand(2, generator=self.generator) + self.head(self.embedding(tokens)).sum()


def picture(model):
    """Everything about the model that a run may change, as plain values."""
    return {
        "tensors": {name: value.tolist() for name, value in model.state_dict().items()},
        "python": [
            model.count,
            list(model.history),
            {key: str(value) for key, value in model.cache.items()},
            list(model.queue),
            sorted(model.words),
            model.nested["inner"][0].tolist(),
            hasattr(model, "late"),
        ],
        "generator": model.generator.get_state().tolist(),
    }


def test_everything_is_put_back():
    model = Everything()
    state = ModelState(model)
    before = picture(model)
    model(torch.tensor([1, 2]))
    after = picture(model)
    assert all(before[part] != after[part] for part in before)
    state.restore()
    assert picture(model) == before


def test_things_are_put_back_in_place():
    """Dynamo guards on identity: a restored model must be the same objects."""
    model = Everything()
    state = ModelState(model)
    names = ("history", "cache", "queue", "words", "nested", "generator")
    objects = [getattr(model, name) for name in names]
    tensors = [model.embedding.weight, model.running, model.bound, model.nested["inner"][0]]
    model(torch.tensor([1, 2]))
    assert model.bound is not tensors[2]
    state.restore()
    assert all(getattr(model, name) is held for name, held in zip(names, objects, strict=True))
    found = [model.embedding.weight, model.running, model.bound, model.nested["inner"][0]]
    assert all(left is right for left, right in zip(found, tensors, strict=True))


def test_tied_weights_stay_tied():
    model = Everything()
    state = ModelState(model)
    model(torch.tensor([1]))
    state.restore()
    assert model.head.weight is model.embedding.weight
    assert len(list(model.parameters())) == 2


def test_views_of_one_storage_stay_views():
    model = torch.nn.Module()
    flat = torch.zeros(6)
    model.register_buffer("left", flat[:3])
    model.register_buffer("right", flat[3:])
    state = ModelState(model)
    flat += 1
    state.restore()
    assert model.left.tolist() == model.right.tolist() == [0, 0, 0]
    flat[0] = 5
    assert model.left[0] == 5


def test_swapped_data_is_swapped_back():
    model = torch.nn.Linear(2, 2)
    original = model.weight.detach().clone()
    state = ModelState(model)
    place = model.weight.data_ptr()
    model.weight.data = torch.zeros(3, 3)
    state.restore()
    assert torch.equal(model.weight, original)
    assert model.weight.data_ptr() == place


def test_a_swap_and_a_write_to_the_old_storage_are_both_undone():
    model = torch.nn.Linear(2, 2)
    original = model.weight.detach().clone()
    state = ModelState(model)
    old = model.weight.data
    model.weight.data = torch.zeros(2, 2)
    old.fill_(9)
    state.restore()
    assert torch.equal(model.weight, original)


def test_gradient_flags_are_put_back():
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    state = ModelState(model)
    model.weight.requires_grad_(False)
    model.bias.requires_grad_(True)
    state.restore()
    assert (model.weight.requires_grad, model.bias.requires_grad) == (True, False)


def test_a_replaced_parameter_is_put_back():
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    state = ModelState(model)
    model.weight = torch.nn.Parameter(torch.zeros(2, 2))
    del model.bias
    state.restore()
    assert model.weight is weight
    assert model.bias is not None


def test_a_buffer_that_came_into_the_graph_leaves_it_again():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("memory", torch.zeros(2))
    state = ModelState(model)
    model.memory.add_(model.bias)
    assert model.memory.grad_fn is not None
    state.restore()
    assert model.memory.grad_fn is None
    assert not model.memory.requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.zeros(2), torch.zeros(2)),
        lambda: Statistics(),
        lambda: Counter(),
        lambda: defaultdict(int),
        lambda: np.zeros(2),
        lambda: OrderedDict(a=0),
        lambda: [torch.zeros(2)],
    ],
    ids=["tuple of tensors", "plain object", "Counter", "defaultdict", "numpy array", "OrderedDict", "list"],
)
def test_state_kept_in_any_ordinary_attribute_is_put_back(make):
    model = torch.nn.Module()
    model.kept = make()
    before = str(model.kept)
    state = ModelState(model)
    kept = model.kept
    if isinstance(kept, tuple | list):
        kept[0].add_(1)
    elif isinstance(kept, Statistics):
        kept.calls += 1
    elif isinstance(kept, np.ndarray):
        kept += 1
    else:
        kept["a"] += 1
    assert str(model.kept) != before
    state.restore()
    assert str(model.kept) == before


def test_the_state_of_a_callable_object_is_put_back():
    class Counting:
        def __init__(self):
            self.count = 0
            self.linear = torch.nn.Linear(1, 1)

        def __call__(self, x):
            self.count += 1
            return self.linear(x) * self.count

    model = Counting()
    state = ModelState(model)
    model(torch.ones(1))
    state.restore()
    assert model.count == 0


def test_gradients_are_cleared_before_a_run_and_given_back_after():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    held = model.weight.grad
    values = held.clone()
    state = ModelState(model)
    state.restore()
    assert model.weight.grad is None
    model(torch.ones(1, 2)).pow(2).sum().backward()
    state.release()
    assert model.weight.grad is held
    assert torch.equal(held, values)


def test_modes_are_given_back_module_by_module():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
    model.train()
    model[1].eval()
    state = ModelState(model)
    state.set_training(True)
    assert model[1].training
    state.set_training(False)
    assert not model.training
    state.release()
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_sparse_state_is_put_back():
    model = torch.nn.Module()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    state = ModelState(model)
    model.sparse.mul_(3)
    state.restore()
    assert torch.equal(model.sparse.to_dense(), torch.eye(2))


def test_names_and_roles():
    model = Everything()
    named = [(name, role) for name, role, _ in ModelState(model).named()]
    assert named == [
        ("embedding.weight", "parameter"),
        ("head.bias", "parameter"),
        ("running", "buffer"),
        ("bound", "buffer"),
    ]


def test_two_modules_that_share_a_parameter_name_it_once():
    left, right = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    right.weight = left.weight
    state = ModelState(lambda x: right(left(x)))
    assert len(state.modules) == 2
    tensors = [id(tensor) for _, _, tensor in state.named()]
    assert {id(left.weight), id(left.bias), id(right.bias)} <= set(tensors)
    assert len(tensors) == len(set(tensors))
    assert len({id(tensor) for tensor in state.parameters()}) == len(state.parameters())


def test_loose_tensors_of_a_function_are_state():
    weight = torch.ones(3)

    def function(x):
        return x * weight.add_(1)

    state = ModelState(function)
    function(torch.ones(3))
    state.restore()
    assert weight.tolist() == [1, 1, 1]
    assert [(name, role) for name, role, _ in state.named()] == [("weight", "tensor")]


# --- the pieces ----------------------------------------------------------------------------------


def test_every_generator_is_put_back():
    saved = RandomState()
    first = (random.random(), np.random.rand(), torch.rand(1).item())
    saved.restore()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == first


def test_a_seeded_state_does_not_touch_the_callers():
    before = RandomState()
    seeded = RandomState.seeded(5)
    untouched = (random.random(), np.random.rand(), torch.rand(1).item())
    before.restore()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == untouched
    seeded.restore()
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    before.restore()


def test_a_snapshot_shows_what_a_view_held():
    flat = torch.arange(6.0)
    view = flat.reshape(2, 3).t()
    snapshot = Snapshot()
    snapshot.save(flat)
    flat.zero_()
    assert torch.equal(snapshot.original(view), torch.arange(6.0).reshape(2, 3).t())
    assert snapshot.original(torch.ones(1)) is None


def test_a_storage_that_was_resized_is_put_back():
    values = torch.arange(4.0)
    snapshot = Snapshot()
    snapshot.save(values)
    values.untyped_storage().resize_(0)
    snapshot.restore()
    assert values.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("container", [{"a": 1, "b": 2}, [1, 2], {1, 2}, deque([1, 2])], ids=repr)
def test_refilling_a_container(container):
    saved = type(container)(container)
    refill(container, saved)
    assert container == saved
    container.clear()
    refill(container, saved)
    assert container == saved


def test_refilling_keeps_the_order_of_keys():
    container = {"a": 1, "b": 2}
    saved = dict(container)
    container["a"] = container.pop("a")
    assert list(container) == ["b", "a"]
    refill(container, saved)
    assert list(container) == ["a", "b"]


def test_refilling_a_dictionary_with_tensors_as_keys():
    key, other = torch.ones(3), torch.ones(3)
    container = {key: 1}
    saved = dict(container)
    container.clear()
    container[other] = 1
    refill(container, saved)
    assert [id(held) for held in container] == [id(key)]


# --- inputs --------------------------------------------------------------------------------------


def inputs_of(*args, model=None, **kwargs):
    return CallInputs(args, kwargs, ModelState(model or torch.nn.Identity()))


def test_fresh_inputs_are_copies():
    values = torch.ones(3)
    calls = inputs_of(values, [values * 2], key={"deep": torch.zeros(1)})
    args, kwargs = calls.fresh()
    args[0].zero_()
    args[1][0].zero_()
    args[1].append(1)
    kwargs["key"]["deep"] += 1
    again, keywords = calls.fresh()
    assert values.tolist() == again[0].tolist() == [1, 1, 1]
    assert again[1][0].tolist() == [2, 2, 2]
    assert len(again[1]) == 1
    assert keywords["key"]["deep"].item() == 0


def test_views_of_one_storage_still_share_it():
    base = torch.arange(6.0)
    args, _ = inputs_of(base[:3], base[2:].view(2, 2), base.view(torch.int32)).fresh()
    args[0][2] = 77.0
    assert args[1][0, 0] == 77.0
    assert args[2][2] == torch.tensor(77.0).view(torch.int32)
    assert base[2] == 2.0


def test_strides_and_offsets_are_kept():
    base = torch.arange(12.0).reshape(3, 4)
    original = base.t()[1:, ::2]
    (fresh,), _ = inputs_of(original).fresh()
    assert torch.equal(fresh, original)
    assert (fresh.stride(), fresh.storage_offset()) == (original.stride(), original.storage_offset())


def test_one_tensor_given_twice_is_one_tensor():
    values = torch.ones(2)
    args, kwargs = inputs_of(values, other=values).fresh()
    assert args[0] is kwargs["other"]
    assert args[0] is not values


def test_gradient_flags_of_inputs():
    wanted, unwanted, tokens = torch.ones(1, requires_grad=True), torch.ones(1), torch.ones(1, dtype=torch.long)
    calls = inputs_of(wanted, unwanted, tokens, wanted * 2)
    args, _ = calls.fresh()
    assert [value.requires_grad for value in args] == [True, False, False, True]
    assert [value.is_leaf for value in args] == [True, True, True, False]  # As the caller gives them.
    args, _ = calls.fresh(requires_grad=True)
    assert [value.requires_grad for value in args] == [True, True, False, True]
    assert not unwanted.requires_grad


def test_what_belongs_to_the_model_is_passed_through():
    model = torch.nn.Linear(2, 2)
    args, _ = inputs_of(model.weight, model, torch.ones(1), model=model).fresh()
    assert args[0] is model.weight
    assert args[1] is model


def test_a_part_of_the_model_is_passed_through():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    args, _ = inputs_of(model[0], model=model).fresh()
    assert args[0] is model[0]


def test_generators_in_inputs_start_from_where_they_were():
    generator = torch.Generator().manual_seed(3)
    calls = inputs_of(generator)
    draws = []
    for _ in range(2):
        (given,), _ = calls.fresh()
        draws.append(torch.rand(2, generator=given))
    assert torch.equal(*draws)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
        lambda: torch.zeros(0),
        lambda: torch.ones(1, 3).expand(2, 3),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "conjugate", "negative", "empty", "expanded", "nested", "quantised"],
)
def test_odd_tensors_are_copied(make):
    values = make()
    (fresh,), _ = inputs_of(values).fresh()
    assert fresh is not values
    assert type(fresh) is type(values)
    left, right = (tensor.unbind() if tensor.is_nested else [tensor] for tensor in (fresh, values))
    for one, other in zip(left, right, strict=True):
        if one.is_quantized:
            one, other = one.dequantize(), other.dequantize()
        assert torch.equal(one.to_dense(), other.to_dense())
