"""`same`: the comparison of Dynamo, with its arguments and its meaning, for scripts that switch.

It keeps the original's fixed tolerances, and so its blind spots; `torchparity.check` has neither.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

log = logging.getLogger(__name__)

SEQUENCES = (list, tuple, deque, torch.nn.ParameterList)
SIMILAR = 0.99
# A candidate without NaN where eager has some passes if it is this near to float64.
LOOSE = 4e-2
# Model outputs that are compared by their loss alone, as the original does.
BY_LOSS = ("QuestionAnsweringModelOutput",)
# Classes that are compared attribute by attribute.
BY_ATTRIBUTES = (
    "MaskedLMOutput",
    "Seq2SeqLMOutput",
    "CausalLMOutputWithCrossAttentions",
    "LongformerMaskedLMOutput",
    "Instances",
    "SquashedNormal",
    "Boxes",
    "Normal",
    "TanhTransform",
    "Foo",
    "Variable",
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The options of `same`, handed down through the structure."""

    cos_similarity: bool
    tol: float
    equal_nan: bool
    exact_dtype: bool
    relax_numpy_equality: bool
    ignore_non_fp: bool
    log_error: Callable[..., None]
    use_larger_multiplier_for_smaller_tensor: bool
    force_max_multiplier: bool
    use_iou_for_bool: bool
    iou_threshold: float

    def refuse(self, message: str, *facts: Any) -> bool:
        """Log why two values are not the same, and say that they are not."""
        self.log_error(message, *facts)
        return False


def same(
    ref: Any,
    res: Any,
    fp64_ref: Any = None,
    cos_similarity: bool = False,
    tol: float = 1e-4,
    equal_nan: bool = False,
    exact_dtype: bool = True,
    relax_numpy_equality: bool = False,
    ignore_non_fp: bool = False,
    log_error: Callable[..., None] = log.error,
    use_larger_multiplier_for_smaller_tensor: bool = False,
    force_max_multiplier: bool = False,
    use_iou_for_bool: bool = False,
    iou_threshold: float = 0.99,
) -> bool:
    """Tell whether two results match within a fixed tolerance, or are about as near to float64."""
    rules = Rules(
        cos_similarity=cos_similarity,
        tol=tol,
        equal_nan=equal_nan,
        exact_dtype=exact_dtype,
        relax_numpy_equality=relax_numpy_equality,
        ignore_non_fp=ignore_non_fp,
        log_error=log_error,
        use_larger_multiplier_for_smaller_tensor=use_larger_multiplier_for_smaller_tensor,
        force_max_multiplier=force_max_multiplier,
        use_iou_for_bool=use_iou_for_bool,
        iou_threshold=iou_threshold,
    )
    return _same(ref, res, ref if fp64_ref is None else fp64_ref, rules)


def _same(ref: Any, res: Any, truth: Any, rules: Rules) -> bool:
    truth = ref if truth is None else truth
    if isinstance(ref, (*SEQUENCES, torch.Size)):
        _expect(isinstance(res, SEQUENCES), ref, res)
        if len(ref) != len(res):
            return rules.refuse("Length mismatch: %d and %d", len(ref), len(res))
        return all(_same(*trio, rules) for trio in zip(ref, res, truth, strict=False))
    if type(ref).__name__ in BY_LOSS:
        return _same(ref.loss, res.loss, truth.loss, rules)
    if isinstance(ref, dict):
        return _same_dict(ref, res, truth, rules)
    if isinstance(ref, set):
        _expect(isinstance(res, set) and ref == res, ref, res)
        return True
    if isinstance(ref, np.generic) and not isinstance(ref, float):  # np.float64 is a float to the original.
        return _same_numpy(ref, res, rules)
    if isinstance(ref, torch.Tensor | float):
        return _same_tensor(torch.as_tensor(ref), torch.as_tensor(res), torch.as_tensor(truth), rules)
    if isinstance(ref, str | int | torch.device | None):
        if rules.ignore_non_fp or ref == res:
            return True
        return rules.refuse("Accuracy failed (%s): %s != %s", type(ref), ref, res)
    if isinstance(ref, np.ndarray):
        if type(ref) is not type(res):
            return False
        return _same_tensor(torch.as_tensor(ref), torch.as_tensor(res), torch.as_tensor(truth), rules)
    if type(ref).__name__ in BY_ATTRIBUTES:
        _expect(type(ref) is type(res), ref, res)
        return all(_same(getattr(ref, name), getattr(res, name), getattr(truth, name), rules) for name in vars(ref))
    raise RuntimeError(f"unsupported type: {type(ref).__name__}")


def _expect(condition: bool, ref: Any, res: Any) -> None:
    if not condition:
        raise AssertionError(f"type or content mismatch: {type(ref)} and {type(res)}")


def _same_dict(ref: dict[Any, Any], res: Any, truth: Any, rules: Rules) -> bool:
    _expect(isinstance(res, dict), ref, res)
    if set(ref) != set(res):
        raise AssertionError(f"keys mismatch: {set(ref)} and {set(res)}")
    for key in sorted(ref):
        if not _same(ref[key], res[key], truth[key], rules):
            return rules.refuse("Accuracy failed for key name %s", key)
    return True


def _same_numpy(ref: np.generic, res: Any, rules: Rules) -> bool:
    left: Any = ref
    if rules.relax_numpy_equality and not isinstance(res, np.generic):
        left = ref.item()
    if type(left) is type(res) and left == res:
        return True
    return rules.refuse("Accuracy failed (numpy): %s != %s", ref, res)


def _same_tensor(ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, rules: Rules) -> bool:
    if ref.is_sparse:
        _expect(res.is_sparse, ref, res)
        ref, res = ref.to_dense(), res.to_dense()
        truth = truth.to_dense() if truth.is_sparse else truth
    if rules.exact_dtype:
        if ref.dtype != res.dtype:
            return rules.refuse("dtype mismatch %s, %s", ref.dtype, res.dtype)
        if ref.dtype == torch.bool:
            return rules.ignore_non_fp or _same_bool(ref, res, rules)
    if rules.cos_similarity:
        return _similar(ref, res, rules)
    if not rules.exact_dtype:
        ref = ref.to(res.dtype)
    if torch.allclose(ref, res, atol=rules.tol, rtol=rules.tol, equal_nan=rules.equal_nan):
        return True
    if truth.dtype == torch.float64:
        return _as_near_to_truth(ref, res, truth, rules)
    return rules.ignore_non_fp or rules.refuse("Accuracy failed: not within tol=%s", rules.tol)


def _same_bool(ref: torch.Tensor, res: torch.Tensor, rules: Rules) -> bool:
    if not rules.use_iou_for_bool:
        return torch.equal(ref, res) or rules.refuse("Accuracy failed: bool tensors differ")
    union = int((ref | res).sum())
    overlap = int((ref & res).sum()) / union if union else 1.0
    return overlap >= rules.iou_threshold or rules.refuse("IoU accuracy failed: %.4f", overlap)


def _similar(ref: torch.Tensor, res: torch.Tensor, rules: Rules) -> bool:
    left, right = ref.flatten().float(), res.flatten().float()
    if torch.allclose(left, right, atol=rules.tol, rtol=rules.tol, equal_nan=True):
        return True
    score = float(torch.nn.functional.cosine_similarity(left, right, dim=0, eps=1e-6))
    if score < SIMILAR:
        log.warning("Similarity score=%s", score)
    return score >= SIMILAR


def rmse(truth: torch.Tensor, values: torch.Tensor) -> float:
    """Root mean square of a difference."""
    return math.sqrt(float(torch.mean(torch.square(truth.detach() - values.detach()).double())))


def _as_near_to_truth(ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, rules: Rules) -> bool:
    mended = bool(ref.isnan().any()) and not bool(truth.isnan().any() or res.isnan().any())
    if mended and torch.allclose(truth.to(res.dtype), res, atol=LOOSE, rtol=LOOSE):
        return True
    ref_error, res_error = rmse(truth, ref), rmse(truth, res)
    multiplier = _multiplier(ref, res, rules)
    if res_error <= multiplier * ref_error + rules.tol / 10:
        return True
    if rules.equal_nan and math.isnan(ref_error) and math.isnan(res_error):
        return True
    return rules.refuse(
        "RMSE (res-fp64): %.5f, (ref-fp64): %.5f and shape=%s. res.dtype: %s, multiplier: %f, tol: %f",
        res_error,
        ref_error,
        tuple(res.shape),
        res.dtype,
        multiplier,
        rules.tol,
    )


def _multiplier(ref: torch.Tensor, res: torch.Tensor, rules: Rules) -> float:
    """How many times eager's error the candidate may have, by size and dtype, as the original has it."""
    if rules.force_max_multiplier:
        return 10.0
    if rules.use_larger_multiplier_for_smaller_tensor and ref.numel() <= 10:
        return 10.0
    if rules.use_larger_multiplier_for_smaller_tensor and ref.numel() <= 500:
        return 8.0
    tiny_kernel = ref.ndim == 4 and ref.shape[-1] == ref.shape[-2] == 1
    if ref.numel() < 1000 or tiny_kernel or rules.tol >= 2e-2:
        return 3.0
    return 3.0 if res.dtype in (torch.float16, torch.bfloat16) else 2.0
