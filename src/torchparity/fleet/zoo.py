"""Factories of ready-made suites: tiny models from configurations, with random weights; nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

import torch

from torchparity.errors import TargetError

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
STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SOUNDS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip

# Configuration -> what it wants beside the usual.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "GPT2": OLDER, "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "GPTJ": {**OLDER, "rotary_dim": 4}, "GPTNeoX": {}, "GPTBigCode": OLDER, "CodeGen": {**OLDER, "rotary_dim": 4},
    "Llama": {}, "Mistral": {}, "Mixtral": {"num_local_experts": 4}, "Qwen2": {}, "Qwen3": {"head_dim": 8},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 16}, "Olmoe": EXPERTS, "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8}, "Gemma3Text": {"head_dim": 8}, "Phi": {}, "Phi3": {}, "Falcon": {},
    "Bloom": {"n_layer": 2, "n_head": 4}, "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "XGLM": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}, "StableLm": {}, "Cohere": {},
    "Olmo": {}, "Olmo2": {}, "Starcoder2": {}, "Granite": {}, "Persimmon": {}, "Nemotron": {}, "Glm": {"head_dim": 8},
    "Helium": {"head_dim": 8}, "Biogpt": {}, "Mamba": {"state_size": 8}, "Mamba2": {
        "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8, "expand": 2,
    },
    "Bert": {}, "Roberta": {}, "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "Albert": {"embedding_size": 16}, "Electra": {"embedding_size": 16}, "DebertaV2": {}, "Deberta": {}, "MPNet": {},
    "RoFormer": {}, "Ernie": {}, "Camembert": {}, "XLMRoberta": {}, "ModernBert": {}, "Nystromformer": {},
    "ConvBert": {}, "FNet": {}, "SqueezeBert": {"embedding_size": 32}, "MegatronBert": {}, "RemBert": {
        "input_embedding_size": 16, "output_embedding_size": 16,
    },
    "MobileBert": {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}, "Splinter": {},
    "LayoutLM": {}, "Data2VecText": {}, "XLMRobertaXL": {}, "Yoso": {}, "Esm": {}, "Ibert": {},
    "XLNet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "T5": SEQUENCES, "MT5": SEQUENCES, "UMT5": SEQUENCES, "Bart": SEQUENCES, "Pegasus": SEQUENCES, "MBart": SEQUENCES,
    "Marian": SEQUENCES, "M2M100": SEQUENCES, "Blenderbot": SEQUENCES, "BlenderbotSmall": SEQUENCES,
    "PLBart": SEQUENCES,
}  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "ViT": IMAGES, "DeiT": IMAGES, "Beit": IMAGES, "Dinov2": IMAGES, "ViTMSN": IMAGES, "Data2VecVision": IMAGES,
    "ConvNext": STAGES, "ConvNextV2": STAGES, "ResNet": {"embedding_size": 8, **STAGES},
    "RegNet": {"embedding_size": 8, "groups_width": 4, **STAGES}, "PoolFormer": STAGES,
    "Swin": {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    },
    "Swinv2": {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    },
    "MobileNetV1": {"depth_multiplier": 0.25}, "MobileNetV2": {"depth_multiplier": 0.25},
    "Segformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
}  # fmt: skip
SOUND: dict[str, dict[str, Any]] = {"Wav2Vec2": SOUNDS, "Hubert": SOUNDS, "UniSpeech": SOUNDS, "SEW": SOUNDS}
TIMM = (
    "resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto",
    "mixer_s32_224", "deit_tiny_patch16_224", "regnetx_002", "ghostnet_050", "levit_128s",
)  # fmt: skip
TORCHVISION = ("resnet18", "mobilenet_v2", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "regnet_y_400mf")

Made = tuple[torch.nn.Module, tuple[Any, ...]]


class Plain(torch.nn.Module):
    """A model of transformers that takes its arguments by name, and gives tensors in a tuple."""

    def __init__(self, model: torch.nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> Any:
        """Call the model."""
        return self.model(**dict(zip(self.names, given, strict=True)), return_dict=False)


def transformers_model(name: str) -> Made:
    """Make a tiny model of transformers, with an input."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = wanted("transformers", "torchparity[hf]")
    torch.manual_seed(0)
    if name in VISION:
        model = transformers.AutoModel.from_config(getattr(transformers, f"{name}Config")(**VISION[name]))
        return Plain(model, "pixel_values"), (torch.randn(2, 3, 32, 32),)
    if name in SOUND:
        model = transformers.AutoModel.from_config(getattr(transformers, f"{name}Config")(**SOUND[name]))
        return Plain(model, "input_values"), (torch.randn(2, 800),)
    own = TRANSFORMERS[name]
    known = {"vocab_size": WORDS, "pad_token_id": 0, **own} if name == "XLNet" else {**TEXT, **own}
    config = getattr(transformers, f"{NAMES.get(name, name)}Config")(**known)
    inputs = {"input_ids": torch.randint(3, WORDS, (2, 12))}
    inputs |= {"decoder_input_ids": torch.randint(3, WORDS, (2, 8))} if own is SEQUENCES else {}
    return Plain(transformers.AutoModel.from_config(config), *inputs), tuple(inputs.values())


# Where the name of a configuration is spelt in another way.
NAMES = {"Biogpt": "BioGpt", "Ibert": "IBert"}


def timm_model(name: str) -> Made:
    """Make a small model of timm, with an image."""
    timm = wanted("timm", "timm")
    torch.manual_seed(0)
    size = 224 if "224" in name or name.startswith("levit") else 64
    return timm.create_model(name, num_classes=10), (torch.randn(2, 3, size, size),)


def torchvision_model(name: str) -> Made:
    """Make a small model of torchvision, with an image."""
    torchvision = wanted("torchvision", "torchvision")
    torch.manual_seed(0)
    return torchvision.models.get_model(name, num_classes=10), (torch.randn(2, 3, 64, 64),)


def wanted(module: str, package: str) -> Any:
    """Import a library, or say how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TargetError(f"{module} is not installed", hint=f"pip install {package}") from error
