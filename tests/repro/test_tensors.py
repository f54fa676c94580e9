from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file

from torchparity.compare.checksum import PAGE, fingerprint
from torchparity.errors import BundleError
from torchparity.repro.looking import stored_in
from torchparity.repro.tensors import CODES, read_storages, write_all, write_storages
from torchparity.repro.values import copied_storage


def written(path, storages):
    with path.open("wb", buffering=0) as file:
        write_storages(file, storages)
    return path


def as_bytes(tensor):
    return copied_storage(tensor).data


def test_the_safetensors_library_reads_what_is_written(tmp_path):
    tensors = [torch.randint(0, 100, (5,)).to(dtype) for dtype in CODES] + [torch.empty(0), torch.randn(3)]
    found = load_file(written(tmp_path / "tensors.safetensors", [copied_storage(tensor) for tensor in tensors]))
    assert len(found) == len(tensors)
    for number, tensor in enumerate(tensors):
        assert found[str(number)].dtype == tensor.dtype
        assert torch.equal(found[str(number)].view(torch.uint8), tensor.view(torch.uint8))


def test_a_dtype_that_the_format_does_not_know_is_kept_as_bytes(tmp_path):
    path = written(tmp_path / "t", [copied_storage(torch.tensor([1 + 2j, 3j]))])
    assert load_file(path)["0"].dtype == torch.uint8
    (storage,) = read_storages(path, stored_in(path, 1), ["cpu"])
    assert torch.equal(storage.data.view(torch.complex64), torch.tensor([1 + 2j, 3j]))


def test_reading_gives_the_storages_back(tmp_path):
    storages = [copied_storage(torch.randn(size)) for size in (7, 0, 3)]
    path = written(tmp_path / "t", storages)
    found = read_storages(path, stored_in(path, 3), ["cpu", "cuda:0", "cpu"])
    assert [storage.device for storage in found] == ["cpu", "cuda:0", "cpu"]
    assert all(torch.equal(left.data, right.data) for left, right in zip(storages, found, strict=True))
    assert [storage.fingerprint for storage in found] == [storage.fingerprint for storage in storages]


class Grudging:
    """A file that takes a few bytes at a time, as an unbuffered one may."""

    def __init__(self):
        self.held = b""

    def write(self, data):
        self.held += bytes(data[:5])
        return min(5, len(data))


def test_a_short_write_is_carried_on():
    file = Grudging()
    write_all(file, memoryview(b"seventeen letters"))
    assert file.held == b"seventeen letters"


# --- the fingerprint -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 9, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17])
def test_any_flipped_bit_changes_the_fingerprint(size):
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    before = fingerprint(data)
    for place in {0, size // 2, size - 1}:
        for bit in (1, 16, 128):
            changed = data.clone()
            changed[place] ^= bit
            assert fingerprint(changed) != before
    assert fingerprint(data.clone()) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_flipped_signs_change_the_fingerprint(dtype):
    values = torch.randn(1 << 15).to(dtype)
    pair = values.clone()
    pair[[3, 5]] *= -1
    prints = {fingerprint(as_bytes(tensor)) for tensor in (values, -values, pair)}
    assert len(prints) == 3


def test_order_and_length_change_the_fingerprint():
    data = torch.arange(4 * PAGE, dtype=torch.int32).view(torch.uint8)
    pages = data.view(-1, PAGE).flip(0).flatten()
    halves = data.view(2, -1).flip(0).flatten()
    longer = torch.cat([data, torch.zeros(1, dtype=torch.uint8)])
    prints = [fingerprint(tensor) for tensor in (data, pages, halves, longer, data[:-1].clone())]
    assert len(set(prints)) == len(prints)
    zeros = [fingerprint(torch.zeros(size, dtype=torch.uint8)) for size in (0, 1, 8, PAGE, 2 * PAGE)]
    assert len(set(zeros)) == len(zeros)


# --- damage --------------------------------------------------------------------------------------


def header(entries, *, length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def entry(begin, end):
    return {"dtype": "U8", "shape": [4], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is damaged"),
        (b"\x01\x02", "is damaged"),
        (header({"0": entry(0, 4)}, length=1 << 60), "its header is longer than the file"),
        (header(b"not json"), "is damaged"),
        (header(b"[" * 50_000), "is damaged"),
        (header([1]), "is damaged"),
        (header({"0": 3}), "is damaged"),
        (header({"0": entry(0, 4)}) + b"abc", "storage 0 lies outside the file"),
        (header({"0": entry(-4, 4)}) + b"abcd", "storage 0 lies outside the file"),
        (header({"0": entry(3, 1)}) + b"abcd", "storage 0 lies outside the file"),
        (header({"0": entry(0, 2), "1": entry(2, 4)}) + b"abcd", "holds 2 storages and case.json tells of 1"),
        (header({"7": entry(0, 4)}) + b"abcd", "holds 1 storages and case.json tells of 1"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, data, message):
    path = tmp_path / "tensors.safetensors"
    path.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        stored_in(path, 1)
    assert message in caught.value.message
    assert "copy the bundle again" in caught.value.hint


def test_a_storage_is_shown_in_its_own_dtype_where_it_divides():
    odd = torch.arange(7, dtype=torch.uint8)
    assert copied_storage(odd).dtype == torch.uint8
    assert copied_storage(torch.zeros(3, dtype=torch.int16)).dtype == torch.int16
