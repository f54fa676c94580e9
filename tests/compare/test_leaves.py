"""Taking results apart: every container is opened, every leaf has the path a person would write."""

import enum
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from torchparity.compare.leaves import MAX_DEPTH, parts_of, walk

ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)
Pair = namedtuple("Pair", ["first", "second"])


class Colour(enum.Enum):
    RED = 1


@dataclass
class Record:
    logits: torch.Tensor
    extra: list = field(default_factory=list)
    late: torch.Tensor = field(init=False)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Registered:
    def __init__(self, inside):
        self.hidden = {"inside": inside, "not a child": 3}


pytree.register_pytree_node(
    Registered, lambda value: ([value.hidden["inside"]], None), lambda values, context: Registered(values[0])
)


def paths(value, path=""):
    return [found for found, _ in walk(value, path)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ONE, [""]),
        ([ONE, TWO], ["[0]", "[1]"]),
        ((ONE, [TWO]), ["[0]", "[1][0]"]),
        (deque([ONE, TWO]), ["[0]", "[1]"]),
        (torch.nn.ParameterList([torch.nn.Parameter(ONE.clone())]), ["[0]"]),
        (torch.Size([2, 3]), ["[0]", "[1]"]),
        (Pair(ONE, [TWO]), [".first", ".second[0]"]),
        ({"a": ONE, "b": {"c": TWO}}, [".a", ".b.c"]),
        (OrderedDict(a=ONE), [".a"]),
        (MappingProxyType({"a": ONE}), [".a"]),
        ({"a.b": ONE, "a b": TWO}, ["['a.b']", "['a b']"]),
        ({1: ONE, "1": TWO}, ["[1]", "['1']"]),
        ({(0, "x"): ONE, None: TWO, 1.5: ONE}, ["[(0, 'x')]", "[None]", "[1.5]"]),
        (frozenset([7]), ["{0}"]),
        (Record(ONE, [TWO]), [".logits", ".extra[0]"]),
        (SimpleNamespace(a=ONE, b=[TWO]), [".a", ".b[0]"]),
        (Registered(ONE), ["[0]"]),
        (torch.distributions.Normal(ONE, TWO, validate_args=False), [".loc", ".scale"]),
        (None, [""]),
        ("text", [""]),
        (Colour.RED, [""]),
        (np.float32(1.0), [""]),
        (np.zeros(3), [""]),
        (torch.float32, [""]),
        (torch.nn.Linear(1, 1), [""]),
        (Record, [""]),
        ([], []),
        ({}, []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_container_is_opened(value, expected):
    found = paths(value)
    assert [path for path in found if path in expected] == expected
    # A distribution carries more attributes than its parameters; everything else has exactly these.
    assert isinstance(value, torch.distributions.Distribution) or found == expected


def test_the_leaf_itself_is_handed_out_and_not_a_copy():
    ((path, leaf),) = walk({"x": [ONE]}, "output")
    assert path == "output.x[0]"
    assert leaf is ONE


def test_a_set_is_walked_in_the_same_order_whatever_its_hashes():
    words = ["one", "two", "three", "four"]
    assert [leaf for _, leaf in walk(set(words))] == sorted(words, key=repr)


def test_a_field_that_was_never_set_is_left_out():
    record = Record(ONE)
    assert paths(record) == [".logits"]
    record.late = TWO
    assert paths(record) == [".logits", ".late"]


def test_one_tensor_in_two_places_is_two_leaves():
    assert paths([ONE, ONE]) == ["[0]", "[1]"]


def test_one_list_in_two_places_is_walked_twice():
    shared = [ONE]
    assert paths([shared, shared]) == ["[0][0]", "[1][0]"]


def test_a_cycle_ends():
    loop = [ONE]
    loop.append(loop)
    assert paths(loop) == ["[0]"]
    left, right = SimpleNamespace(value=ONE), SimpleNamespace(value=TWO)
    left.other, right.other = right, left
    assert paths(left) == [".value", ".other.value"]


def test_a_generator_is_one_leaf():
    generator = torch.Generator()
    assert list(walk([generator])) == [("[0]", generator)]


def test_a_deep_list_is_walked_to_the_bottom():
    value = ONE
    for _ in range(MAX_DEPTH):
        value = [value]
    assert [leaf for _, leaf in walk(value)] == [ONE]


def test_a_view_of_a_dictionary_is_opened():
    assert [leaf for _, leaf in walk({"a": ONE, "b": TWO}.values())] == [ONE, TWO]


def test_an_object_with_slots_is_opened():
    assert [leaf for _, leaf in walk(Slotted(ONE))] == [ONE]


# --- parts_of ------------------------------------------------------------------------------------


def test_a_plain_tensor_is_its_own_part():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert parts_of(parameter) == [("", parameter)]
    values = torch.ones(2, dtype=torch.complex64)
    assert parts_of(values)[0][1] is values


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_is_its_dense_form(layout):
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    ((suffix, part),) = parts_of(dense.to_sparse(layout=layout))
    assert suffix == ".to_dense()"
    assert torch.equal(part, dense)
    assert not part.requires_grad


def test_a_sparse_tensor_that_is_not_coalesced_is_added_up():
    values = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (3,))
    assert parts_of(values)[0][1].tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_is_its_rows(layout):
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=layout)
    parts = parts_of(ragged)
    assert len({suffix for suffix, _ in parts}) == 2
    assert [part.tolist() for _, part in parts] == [[1, 1], [0, 0, 0]]


def test_two_quantised_tensors_with_another_scale_have_other_parts():
    fine = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 0, torch.qint8)
    coarse = torch.quantize_per_tensor(torch.tensor([10.0, 20.0]), 1.0, 0, torch.qint8)
    assert torch.equal(fine.int_repr(), coarse.int_repr())
    left, right = dict(parts_of(fine)), dict(parts_of(coarse))
    assert ".int_repr()" in left
    assert any(not torch.equal(left[suffix], right[suffix]) for suffix in left)


def test_a_wrapper_is_taken_apart_part_by_part():
    parts = parts_of(TwoTensor(torch.ones(2), torch.zeros(2)))
    assert [(suffix, part.tolist()) for suffix, part in parts] == [(".a", [1, 1]), (".b", [0, 0])]


def test_a_subclass_without_storage_tricks_is_a_plain_tensor():
    class Named(torch.Tensor):
        pass

    ((suffix, part),) = parts_of(torch.ones(2).as_subclass(Named))
    assert suffix == ""
    assert type(part) is torch.Tensor
