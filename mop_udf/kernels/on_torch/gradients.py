"""Gradients with respect to a model's inputs, on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from mop_udf.kernels.on_torch.memory import memory_errors


def of_inputs(model: Any, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """See on_tensorflow."""
    with memory_errors(), torch.enable_grad():
        given = [keras.ops.convert_to_tensor(one).detach().requires_grad_(True) for one in rows]
        made = model(given if len(given) > 1 else given[0], training=False)
        total = sum(one.sum() for one in keras.tree.flatten(made))
        if not total.requires_grad:
            return [np.zeros_like(one) for one in rows]
        found = torch.autograd.grad(total, given, allow_unused=True)
    return [np.zeros_like(one) if made is None else made.cpu().numpy() for one, made in zip(rows, found)]
