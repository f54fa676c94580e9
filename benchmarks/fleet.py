"""`python -m benchmarks.fleet`: clean models that we did not write, under the real compiler. Nothing may differ.

Tiny models of transformers, timm and torchvision, made from their configurations with random weights, nothing
downloaded: float32 and bfloat16, eval and train. On a GPU, with the modes that record and tune:

    python -m benchmarks.fleet --device cuda --dtypes float32 bfloat16 float16 --workers 12 \
        --modes default reduce-overhead max-autotune --only Llama Bert T5 ViT resnet18
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from rich.console import Console

import torchparity
from torchparity.workers.outcome import Ending, Limits
from torchparity.workers.pool import Pool

JOB = "benchmarks.fleet:model_job"
PRELOAD = ("torchparity.verbs.jobs",)

WORDS = 64
TEXT = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OLDER = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48}
SEQUENCES = {
    "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
IMAGES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip

# Configuration -> what it wants beside the usual; "model" where the plain one is not the one to take.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Gpt2": OLDER, "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "GPTJ": {**OLDER, "rotary_dim": 4}, "GPTNeoX": {}, "Llama": {}, "Mistral": {}, "Mixtral": {"num_local_experts": 4},
    "Qwen2": {}, "Qwen3": {"head_dim": 8}, "Gemma": {"head_dim": 8}, "Gemma2": {"head_dim": 8}, "Phi": {}, "Phi3": {},
    "Falcon": {}, "Bloom": {"n_layer": 2, "n_head": 4}, "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "StableLm": {}, "Cohere": {}, "Olmo": {}, "Olmo2": {}, "Starcoder2": {}, "Granite": {}, "Persimmon": {},
    "Bert": {}, "Roberta": {}, "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "Albert": {"embedding_size": 16}, "Electra": {"embedding_size": 16}, "DebertaV2": {}, "MPNet": {}, "RoFormer": {},
    "Ernie": {}, "Camembert": {}, "XLMRoberta": {}, "ModernBert": {}, "Nystromformer": {}, "ConvBert": {},
    "FNet": {}, "SqueezeBert": {"embedding_size": 32}, "Mamba": {"state_size": 8},
    "T5": SEQUENCES, "Bart": SEQUENCES, "Pegasus": SEQUENCES, "MBart": SEQUENCES,
}  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "ViT": IMAGES, "DeiT": IMAGES, "Beit": IMAGES, "Dinov2": IMAGES, "ViTMSN": IMAGES,
    "ConvNext": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "Swin": {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    },
    "PoolFormer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
}  # fmt: skip
TIMM = (
    "resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto",
    "mixer_s32_224", "deit_tiny_patch16_224", "regnetx_002", "ghostnet_050", "levit_128s",
)  # fmt: skip
TORCHVISION = ("resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "regnet_y_400mf")

Made = tuple[torch.nn.Module, tuple[Any, ...]]


class Plain(torch.nn.Module):
    """A model of transformers that takes its first argument by name, and gives tensors in a tuple."""

    def __init__(self, model: torch.nn.Module, name: str, **more: Any) -> None:
        super().__init__()
        self.model, self.name, self.more = model, name, more

    def forward(self, given: torch.Tensor) -> Any:
        return self.model(**{self.name: given}, **self.more, return_dict=False)


def text(name: str) -> Made:
    import transformers

    known = {**TEXT, **TRANSFORMERS[name]}
    config = getattr(transformers, f"{name.replace('Gpt2', 'GPT2')}Config")(**known)
    model = transformers.AutoModel.from_config(config)
    more: dict[str, Any] = {}
    if TRANSFORMERS[name] is SEQUENCES:
        more["decoder_input_ids"] = torch.randint(3, WORDS, (2, 8))
    return Plain(model, "input_ids", **more), (torch.randint(3, WORDS, (2, 12)),)


def vision(name: str) -> Made:
    import transformers

    config = getattr(transformers, f"{name}Config")(**VISION[name])
    return Plain(transformers.AutoModel.from_config(config), "pixel_values"), (torch.randn(2, 3, 32, 32),)


def from_timm(name: str) -> Made:
    import timm

    model = timm.create_model(name, num_classes=10)
    size = 224 if "224" in name or name.startswith("levit") else 64
    return model, (torch.randn(2, 3, size, size),)


def from_torchvision(name: str) -> Made:
    import torchvision

    return torchvision.models.get_model(name, num_classes=10), (torch.randn(2, 3, 64, 64),)


MAKERS: dict[str, tuple[Callable[[str], Made], tuple[str, ...]]] = {
    "transformers": (text, tuple(TRANSFORMERS)),
    "vision": (vision, tuple(VISION)),
    "timm": (from_timm, TIMM),
    "torchvision": (from_torchvision, TORCHVISION),
}


def model_job(payload: dict[str, Any], announce: Any) -> dict[str, Any]:
    """Check one model in one way, in the process that this is called in."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    model, inputs = MAKERS[payload["kind"]][0](payload["name"])
    dtype = getattr(torch, payload["dtype"])
    device = payload["device"]
    inputs = tuple(given.to(device, dtype if given.is_floating_point() else given.dtype) for given in inputs)
    model = model.to(device, dtype)
    if isinstance(model, Plain):
        model.more = {name: given.to(device) for name, given in model.more.items()}
    verdict = torchparity.check(model, inputs, backend=payload["backend"], train=payload["train"], mode=payload["mode"])
    return {
        "status": verdict.status.value,
        "severity": verdict.severity.value,
        "score": max((max(leaf.score, leaf.aggregate_score) for leaf in verdict.leaves), default=0.0),
        "seconds": round(verdict.seconds, 1),
        "reasons": list(verdict.reasons[:3]),
    }


def chosen(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every model in every way that was asked for."""
    found = [
        {"kind": kind, "name": name, "dtype": dtype, "train": train, "mode": mode}
        | {"backend": options.backend, "device": options.device}
        for mode in options.modes
        for kind in options.kinds
        for name in MAKERS[kind][1]
        for dtype in options.dtypes
        for train in (False, True)
        if not options.only or name in options.only
    ]
    random.Random(options.seed).shuffle(found)  # So that what there is time for is some of everything.
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--kinds", nargs="*", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", default=["default"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    console = Console(width=200)
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + 60 * options.minutes
    with Pool(workers=options.workers, preload=PRELOAD) as pool:
        limits = Limits(seconds=options.timeout)
        pending = {pool.submit(JOB, payload, limits=limits): payload for payload in chosen(options)}
        for future in as_completed(pending):
            asked, outcome = pending[future], future.result()
            row = outcome.value
            if outcome.ending is not Ending.RETURNED:
                row = {"status": outcome.ending.value, "reasons": [str(outcome.error)[-300:]]}
            counts[row["status"]] += 1
            way = "train" if asked["train"] else "eval"
            title = f"{asked['kind']} {asked['name']} {asked['dtype']} {way} {asked['mode']}"
            numbers = f"{row.get('score', 0.0):8.2f} {row.get('seconds', 0.0):6.1f} s"
            told = "" if row["status"] == "same" else "; ".join(row["reasons"])
            console.print(f"{row['status']:8} {title:50} {numbers}  {told}", highlight=False, markup=False)
            if options.out is not None:
                with options.out.open("a") as log:
                    log.write(json.dumps({"model": title, **row}) + "\n")
            if time.monotonic() > deadline:
                console.print(f"the time is over; {len(pending) - counts.total()} were not asked")
                for left in pending:
                    left.cancel()
                break
    console.print(", ".join(f"{count} {status}" for status, count in counts.most_common()))


if __name__ == "__main__":
    main()
