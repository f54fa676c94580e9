"""The lower half of every `repro.py`: reading the inputs and judging the compiled graph with torch alone.

This file is written into each bundle as it stands, below the graph, its inputs and its recipe. It imports
nothing of torchparity, and names two private modules of torch, because the script must run where torchparity
is not installed. The judgement is the oracle's in short: noise runs tell how far correct results lie apart,
and the compiled graph must lie within eight times that.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import operator
import pathlib
import struct
import sys
import traceback
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What the upper half of a script defines; here so that this file can be checked by itself.
AUTOCAST: tuple[str, torch.dtype] | None = None
BACKWARD = False
DEVICES: tuple[str, ...] = ()
EXACT: frozenset[str] = frozenset()
IGNORED: tuple[str, ...] = ()
make_model: Any = None
make_inputs: Any = None
random_states: Any = None
compile_model: Any = None

# --- below here: reading and judging with torch alone --------------------------------------------

THRESHOLD, NOISE_RUNS, AMPLIFIED_RUNS = 8.0, 6, 6
BITS = {torch.float64: (torch.int64, 26), torch.float32: (torch.int32, 12), torch.float16: (torch.int16, 5), torch.bfloat16: (torch.int16, 3)}  # fmt: skip  # noqa: E501


class Reader:
    """Makes fresh tensors from the storages in tensors.safetensors, aliasing and strides included."""

    def __init__(self, blobs: dict[int, torch.Tensor]) -> None:
        self.blobs = blobs
        self.storages: dict[int, torch.UntypedStorage] = {}

    def fresh(self) -> Reader:
        """Forget the tensors that were handed out: the next ones are new."""
        self.storages = {}
        return self

    def storage(self, number: int) -> torch.UntypedStorage:
        """Return a storage, the same one for the same number."""
        if number not in self.storages:
            self.storages[number] = self.blobs[number].clone().to(DEVICES[number]).untyped_storage()
        return self.storages[number]

    def tensor(
        self, storage: int, dtype: torch.dtype, shape: Any, stride: Any, *, offset: int = 0, **flags: Any
    ) -> Any:
        """Return a view of one storage."""
        held = self.storage(storage)
        base = torch.empty(0, dtype=dtype, device=DEVICES[storage])
        made = base.set_(held, offset, shape, stride)
        made = made.conj() if flags.get("conjugate") else made
        made = torch._neg_view(made) if flags.get("negative") else made
        if flags.get("parameter"):
            return torch.nn.Parameter(made, requires_grad=bool(flags.get("requires_grad")))
        return made.requires_grad_(bool(flags.get("requires_grad")))

    def sparse(self, layout: torch.layout, shape: Any, *parts: Any, coalesced: bool = False, **flags: Any) -> Any:
        """Return a sparse tensor."""
        if layout == torch.sparse_coo:
            made = torch.sparse_coo_tensor(
                parts[0], parts[1], shape, is_coalesced=coalesced or None, check_invariants=True
            )
        else:
            made = torch.sparse_compressed_tensor(
                parts[0], parts[1], parts[2], shape, layout=layout, check_invariants=True
            )
        return made.requires_grad_(bool(flags.get("requires_grad")))

    def wrapper(self, module: str, name: str, parts: Any, context: Any, shape: Any, stride: Any, **flags: Any) -> Any:
        """Put a tensor subclass together again."""
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        made = kind.__tensor_unflatten__(parts, context, torch.Size(shape), stride)
        return made.requires_grad_(bool(flags.get("requires_grad")))

    def generator(self, device: str, state: torch.Tensor) -> torch.Generator:
        """Return a random generator at the state it stood at."""
        made = torch.Generator(device)
        made.set_state(state)
        return made


def read_blobs(path: pathlib.Path) -> dict[int, torch.Tensor]:
    """Return the bytes of every storage in a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    blobs = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if end > len(data):
            raise ValueError(f"storage {name} lies outside the file")
        held = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8) if end > begin else torch.empty(0)
        blobs[int(name)] = held.to(torch.uint8)
    if len(blobs) != len(DEVICES):
        raise ValueError(f"it holds {len(blobs)} storages, not {len(DEVICES)}")
    return blobs


def attach(module: torch.nn.Module, path: str, value: Any) -> None:
    """Set an attribute at a dotted path."""
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(module, parent):
            setattr(module, parent, torch.nn.Module())
        module = getattr(module, parent)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


class Written(torch.fx.Proxy):
    """A value that can be written to where it lies: by `x[0] = 1`, which plain tracing refuses, and by `x += 1`,
    of which it makes another value.
    """

    def __setitem__(self, place: Any, value: Any) -> None:
        """Record an assignment to a part."""
        self.tracer.create_proxy("call_function", operator.setitem, (self, place, value), {})


def written(operation: Any) -> Any:
    """Return the method that records an operation in place."""
    return lambda self, other: self.tracer.create_proxy("call_function", operation, (self, other), {})


for name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():
    setattr(Written, f"__i{name}__", written(getattr(operator, f"i{name}")))


class Tracer(torch.fx.Tracer):
    """Turns the body of a higher-order operator, given as code, back into the graph that it was."""

    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """Let values be written to."""
        return Written(node, self)

    def create_arg(self, a: Any) -> Any:
        """Let bodies hold bodies."""
        if isinstance(a, torch.nn.Module):
            names = [name for name, module in self.root.named_modules() if module is a]
            return self.create_node("get_attr", names[0], (), {})
        return super().create_arg(a)


class Recording(TorchFunctionMode):
    """Records calls that take no tensor, which tracing alone would run instead (factories, autocast switches)."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call."""
        # Making a device is no operation; torch 2.11 asks about it all the same.
        if func is torch.device or any(isinstance(leaf, torch.fx.Proxy) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **(kwargs or {}))
        return self.tracer.create_proxy("call_function", func, tuple(args), dict(kwargs or {}))


@contextlib.contextmanager
def recorded_operators(tracer: Tracer) -> Any:
    """Record calls of higher-order operators too, before these look at their arguments."""
    kinds = {kind for operator in torch._ops._higher_order_ops.values() for kind in type(operator).__mro__}
    held = {kind: vars(kind)["__call__"] for kind in kinds if "__call__" in vars(kind)}
    try:
        for kind in held:
            kind.__call__ = lambda self, *args, **kwargs: tracer.create_proxy("call_function", self, args, kwargs)  # type: ignore[method-assign]
        yield
    finally:
        for kind, call in held.items():
            kind.__call__ = call  # type: ignore[method-assign]


def as_graphs(module: torch.nn.Module) -> torch.nn.Module:
    """Turn the bodies inside a model, innermost first, into the graph modules that higher-order operators ask for."""
    for name, body in list(module.named_children()):
        as_graphs(body)
        if type(body) is not torch.nn.Module:
            tracer = Tracer()
            with Recording(tracer), recorded_operators(tracer):
                graph = tracer.trace(body)
            setattr(module, name, torch.fx.GraphModule(body, graph))
    return module


class Noise(TorchDispatchMode):
    """Moves every rounding by about one unit in the last place, and every sum as far as its terms may err."""

    supports_higher_order_operators = True

    def __init__(self, seed: int, amplitude: float) -> None:
        super().__init__()
        self.dice = torch.Generator().manual_seed(seed)
        self.amplitude = amplitude

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and move what it rounded."""
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self.inside(func, args, kwargs or {})
        outputs = func(*args, **(kwargs or {}))
        name = getattr(func, "_schema", None) and func._schema.name.split("::")[-1]
        if not name or func.is_view or name.rstrip("_") in EXACT or torch.Tag.nondeterministic_seeded in func.tags:
            return outputs
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        statistics = args[3:5] if name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm") else ()
        written = [
            args[place] if place < len(args) else (kwargs or {}).get(argument.name)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        moved = {id(leaf): leaf for leaf in [*tree_leaves(outputs), *tree_leaves([written, statistics])]}
        for output in moved.values():
            if isinstance(output, torch.Tensor) and output.layout == torch.strided:
                output = torch.view_as_real(output) if output.is_complex() and not output.is_conj() else output
                if output.dtype in BITS:
                    self.move(output, name, [tensor.numel() for tensor in inputs if floats(tensor)], inputs)
        return outputs

    def inside(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Run the body of a higher-order operator with the noise on, where there is a way to."""
        kernel = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if operator.name() == "cond":
            kernel = lambda taken, first, second, operands: (first if bool(taken) else second)(*operands)  # noqa: E731
        if kernel is None:
            return operator(*args, **kwargs)
        with self:
            return kernel(*args, **kwargs)

    def move(self, output: torch.Tensor, name: str, sizes: list[int], inputs: list[torch.Tensor]) -> None:
        """Move one result in place."""
        integer, low = BITS[output.dtype]
        if output.numel() == 0 or any(
            step == 0 and size > 1 for step, size in zip(output.stride(), output.shape, strict=True)
        ):
            return
        steps = torch.randint(-4, 4, output.shape, generator=self.dice).clamp_(-1, 1)
        steps *= torch.randint(0, 2, output.shape, generator=self.dice) * max(1, round(self.amplitude))
        bits = output.view(integer)
        rounds = (bits & ((1 << low) - 1)) != 0
        bits += (steps.to(output.device) * rounds).to(integer)
        terms = max(sizes, default=1) / output.numel()
        if "mm" in name or "conv" in name or "mv" in name:
            first, second = sorted(sizes)[-1:] + sorted(sizes)[-2:-1] if len(sizes) > 1 else (1, 1)
            terms = min(64.0, math.sqrt(first * second / output.numel()))
        elif any(word in name for word in ("softmax", "norm", "attention")):
            terms = max(terms, max((max(tensor.shape, default=1) for tensor in inputs), default=1))
        if terms >= 4 and output.dtype in (torch.float32, torch.float64):
            chain = 0.3 * math.sqrt(min(terms, 1 << 15))
            if any(repeats(tensor) for tensor in inputs):
                chain = 0.12 * min(terms, 1 << 13)
            finite = torch.nan_to_num(output, nan=0.0, posinf=0.0, neginf=0.0)
            scale = finite.abs().clamp(min=float(finite.square().mean().sqrt())) * rounds
            drawn = torch.randn(output.shape, generator=self.dice, dtype=output.dtype).to(output.device) / 2
            unit = torch.finfo(output.dtype).eps * self.amplitude
            output += drawn * scale * (unit * chain)
            if any(word in name for word in ("softmax", "norm", "attention")) and output.dim() > 1:
                # An error in the sums behind a row (a channel, for batch norm) moves all of it.
                rows = [size if axis == 1 else 1 for axis, size in enumerate(output.shape)]
                rows = rows if "batch_norm" in name else [*output.shape[:-1], 1]
                grown, shifted = (torch.randn(rows, generator=self.dice).to(output) / 2 * unit for _ in range(2))
                output *= 1 + grown * chain
                output += shifted * finite.square().mean().sqrt()


def repeats(tensor: torch.Tensor) -> bool:
    """Tell whether neighbours are often equal: such terms all round the same way."""
    flat = tensor.detach().flatten()[:256]
    return flat.is_floating_point() and bool(((flat[1:] == flat[:-1]) & (flat[1:] != 0)).double().mean() > 0.08)


Leaves = dict[str, Any]


def run(read: Reader, compiled: Any = None, mode: Any = contextlib.nullcontext) -> Leaves:
    """Run the graph once, from the same state; return outputs, gradients and inputs as it leaves them."""
    model = make_model(read.fresh())
    inputs = make_inputs(read)
    for device, state in random_states(read).items():
        torch.get_device_module(device).set_rng_state(state) if device != "cpu" else torch.set_rng_state(state)
    if compiled is not None:
        held, compiled = compiled
        for old, new in zip(held.buffers(), model.buffers(), strict=True):
            old.data.copy_(new)
        model = held
    before = [tensor.untyped_storage().data_ptr() for tensor in inputs if is_dense(tensor)]
    autocast = torch.autocast(AUTOCAST[0], AUTOCAST[1]) if AUTOCAST else contextlib.nullcontext()
    with mode(), torch.set_grad_enabled(BACKWARD), autocast:
        outputs = (model if compiled is None else compiled)(*inputs)
    leaves: Leaves = {}
    results = [leaf for leaf in tree_leaves(outputs) if leaf is not None]
    for number, leaf in enumerate(results):
        facts: tuple[Any, ...] = ()
        if is_dense(leaf):
            place = leaf.untyped_storage().data_ptr()
            alias = before.index(place) if place in before and leaf.numel() else None
            steps = [step for step, size in zip(leaf.stride(), leaf.shape, strict=True) if size > 1]
            told = {"stride": steps, "alias": alias, "requires_grad": leaf.requires_grad}
            facts = (leaf.dtype, tuple(leaf.shape), [told[name] for name in told if name not in IGNORED])
        leaves[f"output[{number}]"] = (leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, facts)
    if BACKWARD:
        drawn = torch.Generator().manual_seed(0)
        wanted = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        wanted = [leaf if is_dense(leaf) else leaf.to_dense() for leaf in wanted]
        tangents = [torch.randn(leaf.shape, generator=drawn).to(leaf.device, leaf.dtype) for leaf in wanted]
        with mode():
            torch.autograd.backward(wanted, tangents)
    for number, leaf in enumerate(inputs):
        if isinstance(leaf, torch.Tensor):
            leaves[f"gradient[{number}]"] = (leaf.grad, ())
            leaves[f"input[{number}]"] = (leaf.detach().clone(), ())
    for name, leaf in model.named_buffers():
        leaves[f"constant {name}"] = (leaf.detach().clone(), ())
    return leaves


def is_dense(value: Any) -> bool:
    """Tell whether a value is a plain strided tensor."""
    return (
        isinstance(value, torch.Tensor) and value.layout == torch.strided and not hasattr(value, "__tensor_flatten__")
    )


def numbers(value: torch.Tensor) -> torch.Tensor:
    """Return a leaf as a matrix of float64."""
    value = value.to_dense() if value.layout != torch.strided else value
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    value = value.resolve_neg().double()
    return value.reshape(-1, value.shape[-1] if value.dim() > 1 and value.numel() else max(1, value.numel()))


class Expected:
    """Eager's leaf, and how far the noise takes it."""

    def __init__(self, leaf: torch.Tensor) -> None:
        self.eager, self.epsilon = numbers(leaf), torch.finfo(leaf.dtype).eps
        self.finite = self.eager.isfinite()
        self.squares = torch.zeros_like(self.eager)
        self.total, self.scale, self.runs = 0.0, 0.0, 0
        self.envelope = torch.zeros_like(self.eager)

    def apart(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the distance from eager where both are finite, else zero."""
        return torch.nan_to_num((numbers(leaf) - self.eager) * self.finite, nan=0.0, posinf=0.0, neginf=0.0)

    def add(self, leaf: torch.Tensor) -> None:
        """Count one noise run."""
        apart = self.apart(leaf)
        self.runs += 1
        self.squares += apart.square()
        self.total += float(apart.sum()) ** 2
        self.scale += float((apart * torch.nan_to_num(self.eager)).sum()) ** 2

    def unit(self) -> torch.Tensor:
        """Return one unit of noise for each element: its own, its neighbours', and the rounding of its size."""
        noise, size = self.squares / self.runs, torch.nan_to_num(self.eager).square()
        own = noise.sqrt() + self.epsilon * size.sqrt()
        lent = (noise + outer(noise) * 1.1 + 0.1 * noise.mean()).sqrt()
        lent = lent + self.epsilon / 2 * (size.sqrt() + outer(size).sqrt())
        return torch.where(size > 0, torch.minimum(lent, 32 * own), lent) + torch.finfo(torch.float64).tiny

    def score(self, leaf: torch.Tensor) -> tuple[float, float, float]:
        """Return the worst score, the error there and what was allowed there."""
        values = numbers(leaf)
        if values.shape != self.eager.shape:
            return math.inf, math.inf, 0.0
        if bool(
            ((values != self.eager) & ~(values.isnan() & self.eager.isnan()) & ~(values.isfinite() & self.finite)).any()
        ):
            return math.inf, math.inf, 0.0
        apart, unit = self.apart(leaf), self.unit()
        ratio = apart.abs() / unit
        if ratio.numel() == 0 or float(apart.abs().max()) == 0:
            return 0.0, 0.0, 0.0
        kink = (ratio > 16) & (self.envelope >= 0.67 * apart.abs())
        ratio = torch.where(kink, 0.0, ratio)
        worst = int(ratio.argmax())
        score = float(ratio.flatten()[worst])
        if ratio.numel() >= 16 and not bool(kink.any()):
            energy, count = float(torch.nan_to_num(self.eager).square().sum()), ratio.numel()
            share = max(self.epsilon / 2 / math.sqrt(count), min(self.epsilon, 2.0**-23))
            total = math.sqrt(2 * self.total / self.runs) + share * math.sqrt(energy * count)
            scale = math.sqrt(2 * self.scale / self.runs) + share * energy
            along = float((apart * torch.nan_to_num(self.eager)).sum())
            score = max(score, abs(float(apart.sum())) / (total or 1), abs(along) / (scale or 1))
        return score, float(apart.abs().flatten()[worst]), float(unit.flatten()[worst]) * THRESHOLD


def outer(values: torch.Tensor) -> torch.Tensor:
    """Return rows times columns: the mean of what stands around each element."""
    mean = float(values.mean()) if values.numel() else 0.0
    if mean == 0 or min(values.shape) < 16:
        return torch.full_like(values, mean)
    return values.mean(1, keepdim=True) * values.mean(0, keepdim=True) / mean


def same(left: Any, right: Any) -> bool:
    """Tell whether two leaves are bit for bit the same."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(left) is type(right) and bool(left == right or left != left)
    if left.dtype != right.dtype or left.shape != right.shape or left.layout != right.layout:
        return False
    if not floats(left):
        return bool(torch.equal(left.to_dense(), right.to_dense()))
    return bool(torch.equal(numbers(left).nan_to_num(nan=1e99), numbers(right).nan_to_num(nan=1e99)))


def judge(read: Reader) -> int:
    """Compare the compiled graph with the graph; return the exit code."""
    model = make_model(read.fresh())
    missing, compiled = attempt(lambda: compile_model(model))  # Compilation itself happens at the first call.
    if missing is not None:
        print(f"UNKNOWN: the compiler cannot be had: {missing!r}")
        return 125
    error, eager = attempt(lambda: run(read))
    pair = (model, compiled)
    compiled_error, candidates = attempt(lambda: [run(read, pair) for _ in range(2)])
    if error is not None:
        print(f"{'UNKNOWN' if compiled_error else 'DIFFERS'}: the graph itself raises {error!r}")
        return 125 if compiled_error else 1
    if compiled_error is not None:
        traceback.print_exception(compiled_error)
        print(f"DIFFERS: the compiled graph raises {type(compiled_error).__name__}")
        return 1
    again = run(read)
    unsteady = [path for path in eager if not same(eager[path][0], again[path][0])]
    expected = {path: Expected(leaf) for path, (leaf, _) in eager.items() if floats(leaf)}
    flips: dict[str, list[Any]] = {path: [leaf] for path, (leaf, _) in eager.items()}
    for number in range(NOISE_RUNS):
        for path, (leaf, _) in run(read, mode=lambda number=number: Noise(number, 1.0)).items():
            flips[path].append(leaf)
            if path in expected and floats(leaf):
                expected[path].add(leaf)
    scored = {path: max(scores(expected, flips, eager, found, path) for found in candidates) for path in eager}
    suspects = [path for path, (score, _, _) in scored.items() if THRESHOLD < score < math.inf and path in expected]
    if suspects:
        for number in range(AMPLIFIED_RUNS):
            amplified = run(read, mode=lambda number=number: Noise(100 + number, 4.0))
            for path in suspects:
                apart = expected[path].apart(amplified[path][0]).abs()
                expected[path].envelope = torch.maximum(expected[path].envelope, apart)
        for path in suspects:
            scored[path] = max(scores(expected, flips, eager, found, path) for found in candidates)
    return report(scored, unsteady)


def scores(expected: Any, flips: Any, eager: Leaves, found: Leaves, path: str) -> tuple[float, float, float]:
    """Return score, error and allowance of one leaf of one candidate."""
    (left, facts), (right, found_facts) = eager[path], found.get(path, (None, ()))
    if facts != found_facts or type(left) is not type(right):
        return math.inf, math.inf, 0.0
    if path in expected:
        return expected[path].score(right)  # type: ignore[no-any-return]
    forgiven = any(same(right, leaf) for leaf in flips[path]) or (
        isinstance(left, torch.Tensor)
        and all(leaf.shape == left.shape for leaf in [right, *flips[path]])
        and bool(((left == right) | torch.stack([leaf != left for leaf in flips[path]]).any(0)).all())
    )
    return (0.0, 0.0, 0.0) if forgiven else (math.inf, math.inf, 0.0)


def floats(leaf: Any) -> bool:
    """Tell whether a leaf is compared by distance."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def attempt(action: Any) -> tuple[Exception | None, Any]:
    """Return (the exception, nothing) or (nothing, the result)."""
    try:
        return None, action()
    except Exception as error:  # noqa: BLE001 - whatever a graph raises is an answer
        return error, None


def report(scored: dict[str, tuple[float, float, float]], unsteady: list[str]) -> int:
    """Print the leaves, worst first, and the answer; return the exit code."""
    print(f"{'leaf':24} {'error':>12} {'allowed':>12} {'score':>10}   (differs above {THRESHOLD:g})")
    for path, (score, error, allowed) in sorted(scored.items(), key=lambda entry: -entry[1][0])[:12]:
        print(f"{path:24} {error:12.4g} {allowed:12.4g} {score:10.3g}")
    wrong = [path for path, (score, _, _) in scored.items() if score > THRESHOLD and path not in unsteady]
    if wrong:
        print(f"DIFFERS: {len(wrong)} of {len(scored)} leaves")
        return 1
    if unsteady:
        print(f"UNKNOWN: the graph itself is not deterministic at {', '.join(unsteady)}")
        return 125
    print(f"SAME: all {len(scored)} leaves lie within the graph's own rounding noise")
    return 0


def main() -> int:
    """Read the inputs, judge, and return the exit code."""
    parser = argparse.ArgumentParser(description="0 same, 1 differs, 2 usage, 125 unknown")
    parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    missing = [device for device in set(DEVICES) if not available(device)]
    if missing:
        print(f"UNKNOWN: this machine has no {', '.join(missing)}", file=sys.stderr)
        return 125
    try:
        read = Reader(read_blobs(here / "tensors.safetensors"))
    except (OSError, ValueError, struct.error) as error:
        print(f"error: the inputs cannot be read: {error}", file=sys.stderr)
        print("hint: tensors.safetensors belongs beside repro.py; copy the whole folder", file=sys.stderr)
        return 2
    failure, answer = attempt(lambda: judge(read))
    if failure is not None:
        traceback.print_exception(failure)
        print("UNKNOWN: the judgement itself failed")
        return 125
    return int(answer)


def available(device: str) -> bool:
    """Tell whether a device is here."""
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return True
    module = torch.get_device_module(wanted.type)
    return bool(module.is_available()) and (wanted.index or 0) < module.device_count()
