"""Real graphs, written down and read back: the same digest, and eager results bit for bit those of the captured run."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from benchmarks.models import MODELS, make
from torch import nn

from torchparity import torchapi
from torchparity.judge.script import write_bundle
from torchparity.observe.capture import observed_case
from torchparity.repro.bundle import read_bundle
from torchparity.repro.case import Case, write_graph
from torchparity.repro.opening import open_case
from torchparity.request import Request

Results = list[tuple[str, Any]]


# --- a backend that keeps every graph, and what it computes --------------------------------------


@dataclass
class Keeper:
    """A torch.compile backend: every graph it sees becomes a case with the results of an eager run beside it."""

    inductor: bool = False
    kept: list[tuple[Case, Results]] = field(default_factory=list)

    def __call__(self, graph_module: Any, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        keep = self.keeping(graph_module, copy.deepcopy(graph_module), inputs, "dynamo", "both")
        if self.inductor:

            def inner(graph: Any, example: list[Any], **given: Any) -> Any:
                return self.below(graph, example, "backward" if given.get("is_backward") else "forward")

            compiled = torchapi.compile_with_inductor(graph_module, inputs, inner)
        else:
            compiled = torchapi.aot_backend(
                forward=lambda graph, example: self.below(graph, example, "forward"),
                backward=lambda graph, example: self.below(graph, example, "backward"),
            )(graph_module, inputs)

        def run(*args: Any) -> Any:
            keep(list(args))
            return compiled(*args)

        return run

    def below(self, graph: Any, example: list[Any], direction: str) -> Callable[..., Any]:
        keep = self.keeping(graph, graph, example, "aot", direction)

        def run(*args: Any) -> Any:
            keep(list(args))
            return graph(*args)

        return torchapi.boxed(run)

    def keeping(self, graph: Any, eager: Any, example: list[Any], level: str, direction: str) -> Callable[..., None]:
        written = write_graph(graph, example)
        called = []

        def keep(inputs: list[Any]) -> None:
            if called:
                return
            called.append(True)
            name = f"{len(self.kept) + 1:03d}_{direction}_{level}"
            request = Request(backend="aot_eager")
            case = observed_case(
                written, inputs, name=name, level=level, direction=direction, request=request, origin={}
            )
            with torch.random.fork_rng(devices=[]):
                self.kept.append((case, results(eager, copies(inputs), case.backward)))

        return keep


def copies(inputs: list[Any]) -> list[Any]:
    """Copy inputs, storage by storage, so that aliases stay aliases."""
    memo: dict[int, Any] = {}
    held = [value.detach() if isinstance(value, torch.Tensor) else value for value in inputs]
    made = [copy.deepcopy(value, memo) if isinstance(value, torch.Tensor) else value for value in held]
    for old, new in zip(inputs, made, strict=True):
        if isinstance(old, torch.Tensor) and old.requires_grad:
            new.requires_grad_()
    return made


def results(function: Callable[..., Any], inputs: list[Any], backward: bool) -> Results:
    """Run a graph once; return outputs, aliases, gradients and inputs as it leaves them."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    outputs = [value for value in torchapi.tree_leaves(function(*inputs)) if value is not None]
    places = [torchapi.storage_key(tensor) for tensor in tensors]
    found: Results = []
    for number, value in enumerate(outputs):
        found.append((f"output {number}", bits(value)))
        if isinstance(value, torch.Tensor) and value.numel() and torchapi.storage_key(value) in places:
            found.append((f"output {number} aliases", places.index(torchapi.storage_key(value))))
    if backward:
        wanted = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
        torch.autograd.backward(wanted, [torch.ones_like(value) for value in wanted])
        found += [(f"gradient {number}", bits(tensor.grad)) for number, tensor in enumerate(tensors)]
    found += [(f"input {number}", bits(tensor)) for number, tensor in enumerate(tensors)]
    return found


def bits(value: Any) -> Any:
    """Return a value in a form that equals another one bit for bit or not at all."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.layout != torch.strided:
        value = value.to_dense()
    plain = value.detach().resolve_conj().resolve_neg()
    data = plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), tuple(value.stride()), value.requires_grad, data


def rebuilt(case: Case, path: Any) -> Results:
    """Return what a bundle computes, under the state it was recorded in."""
    model, inputs, random = open_case(case, path).make()
    with torch.random.fork_rng(devices=[]), contextlib.ExitStack() as stack:
        torch.set_rng_state(random["cpu"])
        if case.autocast is not None:
            stack.enter_context(torch.autocast(case.autocast[0], getattr(torch, case.autocast[1])))
        stack.enter_context(torch.set_grad_enabled(case.backward))
        return results(model, inputs, case.backward)


# --- what is captured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A model, the calls that are made of it, and how many graphs must come of them."""

    make: Callable[[], tuple[Callable[..., Any], list[tuple[Any, ...]]]]
    graphs: int
    train: bool = True
    dynamic: bool | None = None
    autocast: torch.dtype | None = None
    inductor: bool = False


PROGRAMS: dict[str, Program] = {}


def program(graphs: int, **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a maker of a model and its arguments (a tuple: one call; a list of tuples: several)."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
            model, args = function()
            return model, args if isinstance(args, list) else [args]

        PROGRAMS[function.__name__] = Program(made, graphs, **options)
        return function

    return register


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def benchmark_model(name: str) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    model, args = make(name)
    return model, [args]


for _name in MODELS:
    PROGRAMS[f"{_name}_train"] = Program(functools.partial(benchmark_model, _name), 3)
    PROGRAMS[f"{_name}_eval"] = Program(functools.partial(benchmark_model, _name), 2, train=False)
for _name in ("transformer", "convnet"):
    PROGRAMS[f"{_name}_inductor"] = Program(functools.partial(benchmark_model, _name), 3, inductor=True)


@program(3)
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    return lambda tokens: model(input_ids=tokens, use_cache=False).logits, (torch.randint(0, 61, (2, 7)),)


@program(3)
def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)

    def run(tokens, targets):
        return model(input_ids=tokens, decoder_input_ids=targets, use_cache=False).logits

    return run, (torch.randint(0, 61, (2, 7)), torch.randint(0, 61, (2, 5)))


@program(2, train=False)
def vit():
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    model = ViTModel(config, add_pooling_layer=False)
    return lambda x: model(pixel_values=x).last_hidden_state, (torch.randn(1, 3, 8, 8),)


@program(6, dynamic=True)
def dynamic_two_sizes():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Softmax(-1))
    return model, [(torch.randn(3, 6),), (torch.randn(1, 6),)]


@program(3, dynamic=True)
def dynamic_products():
    def run(x, y):
        joined = torch.cat([x, y], 0)
        return joined.reshape(-1), joined.sum() * x.shape[0], x.new_ones(x.shape[0] * 2, y.shape[0] + 1)

    return run, (leaf(3, 4), leaf(5, 4))


@program(3)
def autocast_inside():
    model = nn.Linear(8, 8)

    def run(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return y.float() @ x.T

    return run, (torch.randn(4, 8),)


@program(3, autocast=torch.bfloat16)
def autocast_around():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), (torch.randn(4, 8),)


@program(2, train=False, autocast=torch.float16)
def autocast_half_eval():
    return nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1)), (torch.randn(4, 8),)


@program(2, train=False)
def condition():
    def run(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    return run, (torch.randn(5),)


@program(2, train=False)
def nested_conditions():
    table = torch.randn(5)

    def inner(x):
        return torch.cond(x.mean() > 1, lambda x: x * table, lambda x: x - torch.full((5,), 0.25), (x,))

    def run(x):
        return torch.cond(x.sum() > -99, inner, lambda x: x.relu() + torch.arange(5), (x,))

    return run, (torch.randn(5),)


@program(2, train=False)
def constants_in_bodies():
    def run(x):
        return torch.cond(
            x.sum() > -99,
            lambda x: x + torch.tensor([1.0, 2.0, 4.0]),
            lambda x: x * torch.tensor([3.0, 2.0, 1.0]),
            (x,),
        )

    return run, (torch.randn(3),)


@program(2, train=False, dynamic=True)
def dynamic_condition():
    def run(x):
        return torch.cond(x.shape[0] > 4, lambda x: x.sin() * x.shape[0], lambda x: x.cos(), (x,)), x.sum()

    return run, (torch.randn(5, 3),)


@program(2, train=False)
def while_loop():
    from torch._higher_order_ops.while_loop import while_loop as loop

    def run(x):
        return loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 1.5), (torch.tensor(0), x))

    return run, (torch.randn(4),)


@program(2, train=False)
def flex_attention():
    from torch.nn.attention.flex_attention import flex_attention as attend

    def run(q, k, v):
        return attend(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.1)

    return run, tuple(torch.randn(1, 2, 128, 16) for _ in range(3))


@program(2, train=False)
def flex_attention_masked():
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as attend

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    return lambda q, k, v: attend(q, k, v, block_mask=mask), tuple(torch.randn(1, 2, 128, 16) for _ in range(3))


@program(3)
def checkpointing():
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 6))
    return lambda x: checkpoint(model, x, use_reentrant=False).sin(), (leaf(4, 6),)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2 + context.saved_tensors[0].sign() * 0.125


@program(3)
def autograd_function():
    return lambda x: Doubled.apply(x).sin(), (leaf(5),)


@program(2, train=False)
def mutated_input():
    def run(x, y):
        x.add_(1)
        x[1:] *= y[1:]
        return x.sum(), y

    return run, (torch.randn(6), torch.randn(6))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.count.add_(x.detach().sum(0))
        return x * self.scale * self.count


@program(3)
def mutated_buffer():
    return Counting(), (torch.randn(4, 3),)


@program(2, train=False)
def aliased_inputs():
    base = torch.randn(12)

    def run(x, y):
        x.mul_(2)
        return x + y.reshape(-1)[:8], y * 3

    return run, (base[2:10], base.view(3, 4))


@program(2, train=False)
def views_as_outputs():
    return lambda x: (x.t(), x[1], x.view(-1), x), (torch.randn(3, 4),)


@program(2, train=False)
def odd_strides():
    wide = torch.randn(4, 10)
    spread = torch.randn(4, 1).expand(4, 3)
    return lambda a, b, c: (a + 1, c @ b, b.sum()), (spread, wide[:, 1:9:2], torch.randn(4, 5).t())


@program(2, train=False)
def python_scalars():
    return lambda x, k, f, flag: x * k + f if flag else x, (torch.randn(4), 3, 0.1, True)


@program(2, train=False, dynamic=True)
def dynamic_scalars():
    return lambda x, k, f: x[:k] * f + k, (torch.randn(9), 5, 0.75)


@program(2, train=False)
def empty_tensors():
    def run(x, y):
        return torch.cat([x, y]), x.sum(), x @ y.t(), y.new_zeros(0, 2)

    return run, (torch.randn(0, 3), torch.randn(2, 3))


@program(3)
def dropout():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout1d(0.3)), (torch.randn(4, 8),)


@program(2, train=False)
def random_numbers():
    def run(x):
        return torch.rand_like(x) + torch.randn(3), torch.randperm(7), torch.bernoulli(x.sigmoid())

    return run, (torch.randn(3),)


@program(2, train=False)
def complex_numbers():
    def run(x, y):
        return torch.fft.fft(x) * y.conj(), (y * 1j).abs(), (y * x).sum()

    return run, (torch.randn(8), torch.randn(8, dtype=torch.complex64).conj())


@program(3)
def scatter_and_index():
    def run(x, index):
        rows = x[index % 3]
        added = x.scatter_add(0, index.view(-1, 1), rows[:, :1])
        return added, rows.index_select(1, index), x.gather(1, index.view(-1, 1)[:3]), rows.masked_fill(rows > 0, 0.5)

    return run, (leaf(4, 5), torch.tensor([0, 2, 1, 3]))


@program(2, train=False)
def integers_and_booleans():
    def run(x, k):
        return x.topk(2).indices, (x > 0) & (k > 3), k // 2 - (k << 2), x.argsort(), k.to(torch.uint8)

    return run, (torch.randn(6), torch.randint(0, 9, (6,), dtype=torch.int32))


@program(6)
def graph_break():
    model = nn.Linear(5, 5)

    def run(x):
        y = model(x).relu()
        torch._dynamo.graph_break()
        return (model(y) * y.sum()).sin()

    return run, (torch.randn(3, 5),)


@program(2, train=False)
def constants_in_the_graph():
    table = torch.arange(6, dtype=torch.float64).view(2, 3)

    def run(x):
        return x + table + torch.tensor([1.0, 2.5, -3.0]), torch.full((2,), float("inf")), x.clamp(max=float("-inf"))

    return run, (torch.randn(2, 3),)


@program(2, train=False)
def half_and_float8():
    def run(x, y):
        return x.to(torch.float8_e4m3fn).to(torch.float16) + y.float().half(), y

    return run, (torch.randn(4), torch.randn(4).to(torch.float8_e5m2))


@program(3)
def parametrized_recurrence():
    cell = nn.RNNCell(4, 4)
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def run(x):
        state = torch.zeros(2, 4)
        for moment in x:
            state = cell(linear(moment), state)
        return state

    return run, (torch.randn(3, 2, 4),)


OPERATOR = """
import torch


@torch.library.custom_op("round_trip_operators::bent", mutates_args=())
def bent(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.sin() * by + 0.125


@bent.register_fake
def _(x, by):
    return torch.empty_like(x)


bent.register_autograd(lambda context, gradient: (gradient * 0.5, None))
"""


def kept_by(function: Callable[..., Any], calls: list[tuple[Any, ...]], asked: Program) -> list[tuple[Case, Results]]:
    """Run a program once, compiled by a keeper; return what it kept."""
    keeper = Keeper(inductor=asked.inductor)
    torch.compiler.reset()
    if isinstance(function, nn.Module):
        function.train(asked.train)
    compiled = torch.compile(function, backend=keeper, dynamic=asked.dynamic)
    for args in calls:
        around = torch.autocast("cpu", asked.autocast) if asked.autocast else contextlib.nullcontext()
        with torch.set_grad_enabled(asked.train), around:
            outputs = compiled(*args)
        if asked.train:
            wanted = [value for value in torchapi.tree_leaves(outputs) if getattr(value, "requires_grad", False)]
            torch.autograd.backward(wanted, [torch.randn_like(value) for value in wanted])
    torch.compiler.reset()
    return keeper.kept


def assert_round_trip(kept: list[tuple[Case, Results]], folder: Any) -> None:
    for case, expected in kept:
        path = write_bundle(case, folder / case.name)
        read = read_bundle(path)
        assert read.digest == case.digest, case.name
        found = rebuilt(read, path)
        assert [name for name, _ in found] == [name for name, _ in expected], case.name
        for (name, left), (_, right) in zip(expected, found, strict=True):
            assert left == right, f"{case.name}: {name}"


# The models of the benchmark in eval mode: their graphs are those of training without the backward.
REPEATS = {f"{name}_eval" for name in MODELS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in REPEATS else name for name in PROGRAMS]
)
def test_every_graph_computes_the_same_from_its_bundle(name, tmp_path):
    asked = PROGRAMS[name]
    function, calls = asked.make()
    kept = kept_by(function, calls, asked)
    assert_round_trip(kept, tmp_path)
    assert len(kept) == asked.graphs


def test_a_custom_operator_travels_with_its_file(tmp_path, monkeypatch):
    (tmp_path / "round_trip_operators.py").write_text(OPERATOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("round_trip_operators")
    kept = kept_by(lambda x: module.bent(x, 0.3).cos(), [(leaf(4),)], Program(lambda: (print, []), 3))
    assert [dict(case.files) for case, _ in kept[:2]] == [{"round_trip_operators.py": OPERATOR}] * 2
    assert_round_trip(kept, tmp_path / "cases")
    assert len(kept) == 3
    sys.modules.pop("round_trip_operators")


def test_the_round_trip_covers_more_than_sixty_graphs():
    assert sum(asked.graphs for asked in PROGRAMS.values()) >= 120
