"""What a candidate does with memory that is not its own; the device is faked at our own seam: red zones on the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from torchparity import Kind, Status, check, torchapi
from torchparity.compare.leaves import Leaf
from torchparity.judge import memory
from torchparity.judge.holding import HELD_OUTPUTS, Held
from torchparity.run.zones import ZONE, Zones


def spoil(tensor: torch.Tensor, distance: int) -> None:
    """Write one byte so many bytes after the end of a tensor's memory, or before its beginning."""
    storage = tensor.untyped_storage()
    place = storage.data_ptr() + (storage.nbytes() - 1 if distance > 0 else 0) + distance
    ctypes.memset(place, 0x5A, 1)


def writing(which: str, distance: int) -> Any:
    """Return a backend that writes beside an input, or beside what it allocates itself; only where that is harmless."""

    def backend(graph_module: Any, inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            made = torch.empty_like(args[-1])
            target = {"input": args[-1], "state": args[0], "made": made}[which]
            if is_between_zones(target):
                spoil(target, distance)
            return graph_module(*args)

        return run

    return backend


def is_between_zones(tensor: torch.Tensor) -> bool:
    """Tell whether the bytes before a tensor are a red zone, so that a write there hits nobody in these tests."""
    return any(
        zones.data_ptr() + ZONE == tensor.untyped_storage().data_ptr() for _, zones, _ in [*LAID.lasting, *LAID.passing]
    )


LAID = Zones()


@pytest.fixture
def _zoned(monkeypatch):
    def lay() -> Zones:
        global LAID
        LAID = Zones()
        return LAID

    monkeypatch.setattr(memory, "ZONED_DEVICES", ("cpu",))
    monkeypatch.setattr(memory, "Zones", lay)


@pytest.mark.usefixtures("_zoned")
@pytest.mark.parametrize("distance", [1, 7, ZONE, -1, -ZONE])
@pytest.mark.parametrize("which", ["input", "state", "made"])
def test_a_write_beside_a_tensor_is_found(which, distance):
    model = torch.nn.Linear(5, 3)
    verdict = check(model, (torch.randn(2, 5),), backend=writing(which, distance))

    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.OUT_OF_BOUNDS.value
    (leaf,) = [leaf for leaf in verdict.leaves if leaf.status is Status.DIFFERS]
    named = {
        "input": "bounds.input args[0]",
        "state": "bounds.parameter weight",
        "made": "bounds.made of test_memory.py",
    }
    assert leaf.path.startswith(named[which])
    side = "after" if distance > 0 else "before"
    assert f"{abs(distance)} bytes {side} it" in leaf.mismatches[0].detail
    assert verdict.reasons[1].startswith(f"the compiled model writes outside {leaf.path.removeprefix('bounds.')}")


@pytest.mark.usefixtures("_zoned")
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_who_stays_inside_is_same(backend, train):
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.GELU(), torch.nn.Linear(7, 3))
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    verdict = check(model, (torch.randn(6, 5),), backend=backend, train=train)

    assert verdict.status is Status.SAME, verdict.reasons
    assert verdict.runs[-1].name == f"{backend} between red zones"
    assert verdict.runs[-1].ending == "returned"
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert len(LAID.lasting) + len(LAID.passing) == 0


@pytest.mark.usefixtures("_zoned")
def test_what_inductor_allocates_lies_between_them(monkeypatch):
    names: list[str] = []
    looked = Zones.look

    def look(zones: Zones) -> None:
        names.extend(name for name, _, _ in zones.passing)
        looked(zones)

    monkeypatch.setattr(Zones, "look", look)
    check(lambda x: torch.softmax(x, 1) @ x, (torch.randn(6, 6),))

    assert any(name.startswith("buf") for name in names)
    assert "input args[0]" in names


class Fills(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin() + torch.zeros(3), torch.empty_like(x).fill_(2.0)])


@pytest.mark.usefixtures("_zoned")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_nothing_is_compiled_anew_between_them(backend):
    compiled: list[Any] = []

    def hear(graph_module: Any, inputs: list[Any], compile_it: Any) -> Any:
        compiled.append(graph_module)
        return compile_it()

    with torchapi.heard_compilations(hear):
        verdict = check(Fills(), (torch.randn(3),), backend=backend)
    assert verdict.status is Status.SAME, verdict.reasons
    assert len(compiled) <= 1
    assert verdict.runs[-1].ending == "returned"


# --- outputs that are given out again -----------------------------------------------------------


def giving_out_again(graph_module: Any, inputs: list[Any]) -> Any:
    """Compile to code that has one buffer for its result, whoever still holds it."""
    buffers: dict[int, torch.Tensor] = {}

    def run(*args: Any) -> Any:
        results = graph_module(*args)
        with torch.no_grad():
            return tuple(
                buffers.setdefault(place, torch.empty_like(result)).copy_(result)
                for place, result in enumerate(results)
            )

    return run


def test_an_output_that_the_next_call_writes_over_is_found():
    verdict = check(torch.sin, (torch.randn(5),), backend=giving_out_again)

    assert verdict.status is Status.DIFFERS
    assert verdict.kind == Kind.MUTATION.value
    assert "what a caller still holds is written over" in verdict.leaves[0].mismatches[0].detail


def clearing(what: Any) -> Any:
    """Return a backend whose code writes zeros over what it returned in earlier calls; `what` chooses of which."""

    def backend(graph_module: Any, inputs: list[Any]) -> Any:
        returned: list[torch.Tensor] = []

        def run(*args: Any) -> Any:
            results = graph_module(*args)
            with torch.no_grad():
                for old in what(returned):
                    old.zero_()
            returned.extend(results)
            return results

        return run

    return backend


@pytest.mark.parametrize(
    "what", [lambda old: old[-1:], lambda old: old[:-1], lambda old: old[:1]], ids=["the last", "earlier", "the first"]
)
@pytest.mark.parametrize("model", [torch.sin, lambda x: torch.sin(x).t()], ids=["whole", "transposed"])
def test_an_output_that_a_later_call_writes_over_is_found(what, model):
    """Its memory is given out to nobody: only the numbers in it tell."""
    inputs = [(torch.randn(5, 3),), (torch.randn(5, 3),)]
    verdict = check(model, input_sets=inputs, backend=clearing(what))

    assert verdict.status is Status.DIFFERS
    assert {leaf.kind for leaf in verdict.leaves if leaf.status is Status.DIFFERS} == {Kind.MUTATION.value}
    assert "once the model is called again" in verdict.leaves[0].mismatches[0].detail


def test_one_of_several_buffers_in_turn_is_found():
    def turning(graph_module: Any, inputs: list[Any]) -> Any:
        buffers: list[torch.Tensor] = []

        def run(*args: Any) -> Any:
            (result,) = graph_module(*args)
            with torch.no_grad():
                buffers.append(buffers.pop(0).copy_(result) if len(buffers) == 2 else result.detach().clone())
            return (buffers[-1],)

        return run

    inputs = [(torch.randn(5),) for _ in range(3)]
    assert check(torch.sin, input_sets=inputs, backend=turning).status is Status.DIFFERS


@pytest.mark.parametrize("count", [2, 4, 7])
def test_a_model_with_some_buffers_in_turn_is_same(count):
    buffers = [torch.zeros(5) for _ in range(count)]

    class Turning(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            buffers.append(buffers.pop(0).copy_(x.sin()))
            return buffers[-1]

    inputs = [(torch.randn(5),), (torch.randn(5),)]
    verdict = check(Turning(), input_sets=inputs, backend="eager", candidate_runs=5)
    assert verdict.status is Status.SAME, verdict.reasons


def test_many_small_outputs_are_not_each_held_against_all(monkeypatch):
    asked = []
    memory_of = torchapi.memory_of
    monkeypatch.setattr(torchapi, "memory_of", lambda tensor: asked.append(1) or memory_of(tensor))
    held, count = Held(), 6000
    for number in range(count):
        if number % 300 == 0:
            held.hear(Leaf(path="", role="structure", value=None))
        held.hear(Leaf(path=f"output[{number}]", role="output", value=torch.zeros(1)))
    assert len(asked) <= 2 * count
    assert len(held.before) <= HELD_OUTPUTS
    assert not held.look_again()


@pytest.mark.parametrize(("reuses", "held_calls", "told"), [(False, 3, {"output"}), (True, 1, set())])
def test_of_who_may_write_over_it_only_the_last_call_is_held(reuses, held_calls, told):
    """Torch's own graphs would see in what is held that a caller still wants it, and record another one beside it."""
    held, outputs = Held(reuses=reuses), [torch.ones(3) for _ in range(4)]
    for output in outputs:
        held.hear(Leaf(path="", role="structure", value=None))
        held.hear(Leaf(path="output", role="output", value=output))
    assert len(held.before) == held_calls
    outputs[2].zero_()
    assert held.look_again() == told


def test_a_model_that_changes_what_it_returned_is_never_the_compilers_fault():
    kept: list[torch.Tensor] = []

    class Keeps(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for old in kept:
                old.add_(1)
            kept.append(x.sin())
            return kept[-1]

    inputs = [(torch.randn(5),), (torch.randn(5),)]
    assert check(Keeps(), input_sets=inputs, backend="eager").status is not Status.DIFFERS


def test_calls_of_one_run_count_too():
    verdict = check(torch.sin, input_sets=[(torch.randn(5),), (torch.randn(5),)], backend=giving_out_again)

    assert {leaf.path for leaf in verdict.leaves if leaf.status is Status.DIFFERS} >= {"call[1].output"}


def test_a_model_that_does_so_itself_is_same():
    buffer = torch.zeros(5)

    class Cached(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return buffer.copy_(x.sin())

    assert check(Cached(), (torch.randn(5),), backend="eager").status is Status.SAME
