from __future__ import annotations

import enum
import math

import numpy
import pytest
import torch

from torchparity.errors import CaseError
from torchparity.repro.values import Dense, Sparse, Storages, Symbol, Wrapper, encode, from_json, literal, to_json

EXACT = [
    None,
    True,
    -7,
    10**30,
    0.1,
    -0.0,
    math.inf,
    -math.inf,
    1e-320,
    complex(0.0, -0.0),
    complex(math.inf, 2.5),
    'it\'s "quoted"\n\\',
    b"\x00\xff",
    ...,
    torch.float8_e5m2,
    torch.strided,
    torch.channels_last,
    torch.device("cuda:3"),
    torch.Size([2, 0]),
    slice(1, None, -2),
    (),
    (1,),
    [1, (2.5, [None])],
    {"a": [1], 2: {"b": ()}},
]


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_a_literal_is_source_that_makes_the_same_value(value):
    text = literal(value)
    made = eval(text, {"torch": torch})
    assert type(made) is type(value)
    assert repr(made) == repr(value)


def test_a_literal_keeps_nan():
    assert math.isnan(eval(literal(math.nan)))


class Word(str):
    pass


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        numpy.float64(0.5),
        numpy.int64(3),
        Word("a"),
        Colour.RED,
        {1, 2},
        object(),
        [1, object()],
        {"a": object()},
        range(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_exactly_a_literal_is_none(value):
    assert literal(value) is None


def test_views_of_one_storage_share_its_number():
    storages = Storages()
    base = torch.arange(12.0)
    first, second = encode(base[2:8:2], "a", storages), encode(base.view(3, 4).t(), "b", storages)
    other = encode(torch.arange(12.0), "c", storages)
    assert first == Dense(storage=0, dtype="float32", shape=(3,), stride=(2,), offset=2)
    assert second == Dense(storage=0, dtype="float32", shape=(4, 3), stride=(1, 4))
    assert other.storage == 1
    assert [storage.data.numel() for storage in storages.found] == [48, 48]


def test_a_storage_is_copied_when_it_is_met():
    storages = Storages()
    tensor = torch.zeros(2)
    encode(tensor, "x", storages)
    tensor.fill_(1)
    assert storages.found[0].data.sum() == 0


def test_flags_are_written_into_the_source():
    value = encode(torch.nn.Parameter(torch.zeros(1, dtype=torch.complex64).conj()), "x", Storages())
    assert value.to_source() == (
        "read.tensor(0, torch.complex64, (1,), (1,), requires_grad=True, parameter=True, conjugate=True)"
    )


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(2, 3),
        torch.eye(3).to_sparse(),
        torch.eye(4).to_sparse_bsr((2, 2)),
        torch.Generator().manual_seed(3),
        [1, None, "a"],
    ],
    ids=["dense", "coo", "bsr", "generator", "literal"],
)
def test_json_and_back_is_the_same_value(value):
    encoded = encode(value, "x", Storages())
    assert from_json(to_json(encoded)) == encoded


def test_symbol_and_wrapper_survive_json():
    part = Dense(storage=0, dtype="float32", shape=(2,), stride=(1,))
    wrapper = Wrapper(
        module="m", name="N", parts=(("a", part),), context="None", shape=(2,), stride=(1,), requires_grad=True
    )
    for value in (Symbol(value=3, expression="x.shape[0]"), wrapper):
        assert from_json(to_json(value)) == value
    assert wrapper.to_source().endswith(", (2,), (1,), requires_grad=True)")


@pytest.mark.parametrize("facts", [{"kind": "pickle"}, {}, {"kind": "dense"}, {"kind": "literal", "text": "1", "x": 1}])
def test_json_that_makes_no_value_raises(facts):
    with pytest.raises((KeyError, TypeError)):
        from_json(facts)


def test_a_sparse_tensor_keeps_whether_it_is_coalesced():
    loose = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,))
    assert [encode(value, "x", Storages()).coalesced for value in (loose, loose.coalesce())] == [False, True]
    assert isinstance(encode(loose, "x", Storages()), Sparse)


class Pair(torch.Tensor):
    @staticmethod
    def __new__(cls, first, second, note):
        made = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
        made.first, made.second, made.note = first, second, note
        return made

    def __tensor_flatten__(self):
        return ["first", "second"], self.note

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def test_a_tensor_subclass_is_taken_apart():
    storages = Storages()
    first = torch.zeros(2)
    value = encode(Pair(first, first[:1], ("note", 3)).requires_grad_(), "x", storages)
    assert (value.module, value.name, value.context, value.requires_grad) == (__name__, "Pair", "('note', 3)", True)
    assert [(name, part.storage, part.shape) for name, part in value.parts] == [("first", 0, (2,)), ("second", 0, (1,))]


@pytest.mark.parametrize("note", [object(), {1}], ids=["object", "set"])
def test_a_tensor_subclass_whose_context_has_no_source_is_refused(note):
    with pytest.raises(CaseError, match="the input x is a Pair, which cannot be rebuilt from its inner tensors"):
        encode(Pair(torch.zeros(2), torch.zeros(2), note), "x", Storages())


class Marked(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, device="meta"), "the input x has a shape but no values"),
        (
            torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
            "the input x is a quantized tensor (torch.strided), which cannot be written down exactly",
        ),
        (
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
            "the input x is a nested tensor (torch.strided), which cannot be written down exactly",
        ),
        (
            torch.zeros(2).as_subclass(Marked),
            "the input x is a Marked tensor (torch.strided), which cannot be written down exactly",
        ),
        (
            torch.zeros(2, 2).to_mkldnn(),
            "the input x is a Tensor tensor (torch._mkldnn), which cannot be written down exactly",
        ),
        ({1}, "the input x is a set, which cannot be written down"),
    ],
    ids=["meta", "quantized", "nested", "subclass", "mkldnn", "set"],
)
def test_what_cannot_be_written_is_refused(value, message):
    with pytest.raises(CaseError) as caught:
        encode(value, "x", Storages())
    assert caught.value.message == message
    assert caught.value.hint


def test_a_jagged_tensor_is_refused():
    jagged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    with pytest.raises(CaseError, match=r"the input x is a nested tensor \(torch.jagged\), which"):
        encode(jagged, "x", Storages())
