"""Keras' activations in NumPy, for arrays of float32. They are tested against Keras (tests/training/test_forward.py)."""

from __future__ import annotations

import math
from collections.abc import Callable

from pg_mop.backend.arrays import np

Function = Callable[["np.ndarray"], "np.ndarray"]
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without an overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Shares of exp(x) on an axis."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def relu(x: np.ndarray) -> np.ndarray:
    """The positive part."""
    return np.maximum(x, 0)


def elu(x: np.ndarray, alpha: float | np.floating = 1.0) -> np.ndarray:
    """x where it is positive, else alpha (exp(x) - 1)."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def leaky_relu(x: np.ndarray, slope: float | np.floating = 0.2) -> np.ndarray:
    """x where it is positive, else slope x."""
    return np.where(x >= 0, x, slope * x)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)), without an overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.asarray(np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)), x.dtype))


def _glu(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return x[..., :half] * sigmoid(x[..., half:])


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


ACTIVATIONS: dict[str, Function] = {
    "celu": elu,
    "elu": elu,
    "exponential": lambda x: np.exp(x),
    "gelu": _gelu,
    "glu": _glu,
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_silu": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": leaky_relu,
    "linear": lambda x: x,
    "log_sigmoid": lambda x: -softplus(-x),
    "log_softmax": _log_softmax,
    "mish": lambda x: x * np.tanh(softplus(x)),
    "relu": relu,
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: SELU_SCALE * elu(x, SELU_ALPHA),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "softmax": softmax,
    "softplus": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sparse_plus": lambda x: np.where(x <= -1, 0, np.where(x < 1, 0.25 * (x + 1) ** 2, x)),
    "sparse_sigmoid": lambda x: np.clip(0.5 * (x + 1), 0, 1),
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
    "tanh": lambda x: np.tanh(x),
    "tanh_shrink": lambda x: x - np.tanh(x),
}
ACTIVATIONS["hard_swish"], ACTIVATIONS["swish"] = ACTIVATIONS["hard_silu"], ACTIVATIONS["silu"]
