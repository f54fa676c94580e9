"""Memory that every pass over a leaf writes anew: one room for a thread, which goes with the last leaf."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from torchparity.compare.room import ALIGNED, GROWTH, Room

CPU = torch.device("cpu")


def test_pieces_lie_beside_each_other_and_have_what_was_asked_for():
    wanted = ((3, torch.float32), (0, torch.int32), (5, torch.float64), (1000, torch.float32), (1, torch.int64))
    pieces = Room(CPU).pieces(*wanted)

    assert [(piece.numel(), piece.dtype) for piece in pieces] == list(wanted)
    for number, piece in enumerate(pieces):
        assert not piece.numel() or (piece.data_ptr() - pieces[0].data_ptr()) % ALIGNED == 0
        piece.fill_(number)
    assert [piece.unique().tolist() for piece in pieces] == [[0], [], [2], [3], [4]]


def test_the_same_memory_is_given_again_and_again():
    room = Room(CPU)
    first = room.pieces((100, torch.float32))[0].data_ptr()
    assert room.pieces((10, torch.float64), (7, torch.int32))[0].data_ptr() == first
    assert room.size == GROWTH


@pytest.mark.parametrize("size", [1, GROWTH, GROWTH + 1, 3 * GROWTH])
def test_it_grows_to_what_is_asked_for_and_never_shrinks(size):
    room = Room(CPU)
    (piece,) = room.pieces((size, torch.uint8))
    assert piece.numel() == size
    assert room.size == -(-size // GROWTH) * GROWTH
    room.pieces((1, torch.uint8))
    assert room.size >= size


def test_leaves_of_one_thread_share_a_room_and_those_of_another_have_their_own():
    room = Room.of(CPU)
    assert Room.of(CPU) is room
    others: list[Room] = []
    thread = threading.Thread(target=lambda: others.append(Room.of(CPU)))
    thread.start()
    thread.join()
    assert others[0] is not room


def test_a_room_goes_with_the_last_who_holds_it():
    room = Room.of(CPU)
    (piece,) = room.pieces((10, torch.float32))
    number = id(room)
    del room, piece
    gc.collect()
    fresh = Room.of(CPU)
    assert fresh.size == 0 or id(fresh) != number
