"""Exported models, run by deployment engines.

What stands here runs in torchparity and is printed, as it stands, into scripts that must run without it. So it imports
nothing of torchparity, and names private modules of torch itself.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

Tensors = list[Any]
Run = Callable[[Tensors], Tensors]
# What the definitions below need in a script.
IMPORTS = (
    "import dataclasses",
    "import tempfile",
    "import torch",
    "from torch.utils._pytree import tree_flatten, tree_unflatten",
)


def with_aot_inductor(program: Any, options: Mapping[str, Any]) -> Run:
    """Compile an exported program with AOTInductor; return what runs it."""
    import torch._inductor

    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=f"{folder}/model.pt2", inductor_configs=dict(options)
        )
        package = torch._inductor.aoti_load_package(path)
    # A package has copies of the model's buffers. Those that it writes to are made the model's own.
    written = set(program.run_decompositions({}).graph_signature.buffers_to_mutate.values())
    shared = {name: buffer for name, buffer in program.named_buffers() if name in written}
    if shared:
        package.load_constants(shared, check_full_update=False, user_managed=True)
    return lambda tensors: list(package(*tensors))


def with_onnxruntime(program: Any, options: Mapping[str, Any]) -> Run:
    """Turn an exported program into ONNX, and load it in ONNX Runtime; return what runs it on the CPU."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    for name, value in options.items():
        if "." in name:
            settings.add_session_config_entry(name, str(value))
        else:
            levels = onnxruntime.GraphOptimizationLevel
            setattr(settings, name, getattr(levels, value) if name == "graph_optimization_level" else value)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        torch.onnx.export(program, f=path, dynamo=True, external_data=True, verbose=False)
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    Value = onnxruntime.OrtValue

    def run(tensors: Tensors) -> Tensors:
        given = [tensor.detach().cpu().resolve_conj().resolve_neg().contiguous() for tensor in tensors]
        # NumPy has no bfloat16, and the other way has no bool.
        values = [
            Value.from_dlpack(tensor) if tensor.dtype == torch.bfloat16 else Value.ortvalue_from_numpy(tensor.numpy())
            for tensor in given
        ]
        results = session.run_with_ort_values(None, dict(zip(names, values, strict=True)))
        return [
            torch.utils.dlpack.from_dlpack(value)
            if "bfloat16" in value.data_type()
            else torch.from_numpy(value.numpy().copy())
            for value in results
        ]

    return run


def with_openvino(program: Any, options: Mapping[str, Any]) -> Run:
    """Convert an exported program with OpenVINO, and compile it for the CPU; return what runs it."""
    import openvino

    model = openvino.compile_model(openvino.convert_model(program), "CPU", dict(options))

    def run(tensors: Tensors) -> Tensors:
        given = []
        for tensor in tensors:
            held = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            if held.dtype == torch.bfloat16:  # NumPy has none: the bits go as float16.
                given.append(openvino.Tensor(openvino.Type.bf16, list(held.shape)))
                given[-1].data[...] = held.view(torch.float16).numpy()
            else:
                given.append(openvino.Tensor(held.numpy()))
        request = model.create_infer_request()
        request.infer(given)
        results = [request.get_output_tensor(number) for number in range(len(model.outputs))]
        made = [torch.from_numpy(result.data.copy()) for result in results]
        pairs = zip(results, made, strict=True)
        return [
            value.view(torch.bfloat16) if entry.element_type == openvino.Type.bf16 else value for entry, value in pairs
        ]

    return run


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a pytree and its structure; dataclasses that nobody has registered are opened too."""
    leaves, structure = tree_flatten(value)
    unknown = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
    for kind in unknown:
        torch.export.register_dataclass(kind)
    return flatten(value) if unknown else (leaves, structure)


class Flat(torch.nn.Module):
    """A model or a function that takes tensors and returns tensors; whatever else it takes and returns is fixed."""

    def __init__(self, model: Any, leaves: list[Any], structure: Any, remember: Callable[[Any], None]) -> None:
        super().__init__()
        self.model, self.structure, self.remember = model, structure, remember
        self.fixed = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Call the model; let it be remembered what its results are made of."""
        given = iter(tensors)
        args, kwargs = tree_unflatten([next(given) if leaf is None else leaf[0] for leaf in self.fixed], self.structure)
        leaves, structure = flatten(self.model(*args, **kwargs))
        fixed = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)
        self.remember(
            (structure, [(leaf,) if isinstance(leaf, fixed) else getattr(leaf, "device", None) for leaf in leaves])
        )
        return tuple(leaf for leaf in leaves if not isinstance(leaf, fixed))


def rebuild(structure: Any, leaves: list[Any], values: Tensors) -> Any:
    """Return what a model returns: the fixed parts of it, and values that an engine has computed."""
    given = iter(values)
    made = []
    for leaf in leaves:
        value = leaf[0] if isinstance(leaf, tuple) else next(given)
        if isinstance(leaf, torch.device):
            value = value.to(leaf)
        elif isinstance(value, torch.Tensor):  # A number that the model takes from a tensor or a size.
            value = value.item()
        made.append(value)
    return tree_unflatten(made, structure)


class Deployed:
    """A model that is exported at its first call for each set of input shapes, and then run by an engine."""

    def __init__(self, model: Any, engine: Any, options: Mapping[str, Any], *, dynamic: bool = False) -> None:
        self.model, self.engine, self.options, self.dynamic = model, engine, options, dynamic
        self.ready: dict[str, tuple[Run, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, exported before or now."""
        leaves, structure = flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = repr((structure, [self.facts(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]))
        if key not in self.ready:
            traced: list[Any] = []
            flat = Flat(self.model, leaves, structure, traced.append)
            self.ready[key] = self.deploy(flat, tensors), traced[-1]
        run, (made_of, results) = self.ready[key]
        return rebuild(made_of, results, run(tensors))

    def facts(self, tensor: torch.Tensor) -> Any:
        """Return what an export depends on; sizes of 0 and 1 are never symbolic."""
        shape = [size if size < 2 or not self.dynamic else "any" for size in tensor.shape]
        return shape, tensor.dtype, tensor.device

    def deploy(self, flat: Flat, tensors: Tensors) -> Run:
        """Export the model, and hand it to the engine."""
        axes = tuple(dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) for tensor in tensors)
        with torch.no_grad():
            program = torch.export.export(flat, tuple(tensors), dynamic_shapes=(axes,) if self.dynamic else None)
            run: Run = self.engine(program, self.options)
        return run


def deploy(function: Any, engine: Any, options: Mapping[str, Any]) -> Any:
    """Return a function that is exported when it is called, and run by an engine."""

    class Exported(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    def call(*args: Any) -> Any:
        program = torch.export.export(Exported(), args)
        results = engine(program, options)([value for value in args if isinstance(value, torch.Tensor)])
        return results[0] if len(results) == 1 else tuple(results)

    return call
