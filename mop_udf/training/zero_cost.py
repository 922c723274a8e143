"""Scores of nets that have not been trained: the better a score, the better the trained net, it is hoped. Runs in the trainer.

- synflow (Tanaka, Kunin, Yamins, Ganguli: "Pruning neural networks without any data by iteratively conserving synaptic flow",
  NeurIPS 2020; as a score of nets: Abdelfattah et al., ICLR 2021): the sum of theta * dR/dtheta over all trained weights theta,
  where R is the sum of the outputs for an input of ones, with |theta| in place of theta.
- naswot (Mellor, Turner, Storkey, Crowley: "Neural Architecture Search without Training", ICML 2021): log |det K|, where K
  counts for each two rows of a minibatch the rectified units that are both on or both off.
- jacob-cov (the first version of that paper, arXiv 2006.04647v1; of this name: Abdelfattah, Mehrotra, Dudziak, Lane: "Zero-Cost
  Proxies for Lightweight NAS", ICLR 2021): -sum(log(v + k) + 1 / (v + k)) over the eigenvalues v of the correlations between
  the rows' Jacobians, the gradients of the sum of the outputs with respect to a row's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from mop_udf.kernels.framework import framework
from mop_udf.training import models

KINDS = ("synflow", "naswot", "jacob-cov")
STEP = 0.02  # of the scale of all weights, from which synflow takes the derivative
STABILITY = 1e-5  # k of jacob-cov


def scores(nets: Sequence[tuple[int, str]], seed: int, kind: str, rows: Sequence[np.ndarray]) -> list[float | None]:
    """The scores of nets as training would begin with them, (model_id, architecture) each; None for a net that has none, or
    that cannot be built. `seed`: of the run; `rows`: a minibatch for each input, which synflow does not need."""
    found: list[float | None] = []
    for model_id, architecture in nets:
        try:
            model = models.build(models.normalise(architecture), models.initial_seed(seed, model_id))
            value = synflow(model) if kind == "synflow" else (naswot if kind == "naswot" else jacob_cov)(model, rows)
        except models.ConfigurationError:
            value = math.nan
        found.append(value if math.isfinite(value) else None)
    return found


def synflow(model: Any) -> float:
    """The synaptic flow of a model, whose weights are changed.

    theta * dR/dtheta, summed over all weights, is the derivative of R by a factor that all weights have. R is close to a
    polynomial in that factor, so that differences (with Richardson's extrapolation) give the derivative without gradients.
    """
    _without_last_activations(model)
    trained = {id(variable) for variable in model.trainable_variables}
    weights = [np.asarray(variable) for variable in model.weights]
    scaled = [id(variable) in trained for variable in model.weights]
    ones = [np.ones([1, *(size or 1 for size in given.shape[1:])], "f4") for given in model.inputs]

    def flow(factor: float) -> float:
        model.set_weights([np.abs(w) * factor if own else w for w, own in zip(weights, scaled)])
        return sum(float(np.sum(np.asarray(made, "f8"))) for made in _outputs(model, ones))

    def slope(step: float) -> float:
        return (flow(1 + step) - flow(1 - step)) / (2 * step)

    return (4 * slope(STEP / 2) - slope(STEP)) / 3


def naswot(model: Any, rows: Sequence[np.ndarray]) -> float:
    """log |det K| of a model on a minibatch; not a number where it has no rectified units, or cannot tell two rows apart."""
    rectified = [layer.output for layer in model.layers if _is_rectified(layer)]
    if not rectified:
        return math.nan
    inner = keras.Model(model.inputs, rectified)
    kernel = np.zeros((len(rows[0]), len(rows[0])))
    for made in _outputs(inner, rows):
        code = (np.asarray(made).reshape(len(made), -1) > 0).astype("f8")
        kernel += code @ code.T + (1 - code) @ (1 - code).T
    if np.linalg.matrix_rank(kernel) < len(kernel):
        return math.nan
    return float(np.linalg.slogdet(kernel)[1])


def jacob_cov(model: Any, rows: Sequence[np.ndarray]) -> float:
    """The score of the rows' Jacobians under a model, whose last activations are changed; not a number where the outputs do not
    depend on a row, or by the same amount on all of its inputs, so that it has no correlation with others."""
    _without_last_activations(model)
    gradients = [one.reshape(len(one), -1).astype("f8") for one in framework.input_gradients(model, rows)]
    jacobian = np.concatenate(gradients, axis=1)
    if not np.all(np.ptp(jacobian, axis=1) > 0):
        return math.nan
    values = np.linalg.eigvalsh(np.atleast_2d(np.corrcoef(jacobian)))
    # (rounding gives eigenvalues a little below 0)
    values = np.maximum(values, 0) + STABILITY
    return -float(np.sum(np.log(values) + 1 / values))


def _without_last_activations(model: Any) -> None:
    """Let a model put out numbers from before its last activations: those of a softmax would add up to 1."""
    for output in model.outputs:
        last = models.maker_of(output)
        if isinstance(last, keras.layers.Softmax):
            last.call = lambda inputs, mask=None: inputs
        elif getattr(last, "activation", None) is not None:
            last.activation = keras.activations.linear


def _is_rectified(layer: Any) -> bool:
    return isinstance(layer, keras.layers.ReLU) or getattr(layer, "activation", None) is keras.activations.relu


def _outputs(model: Any, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    given = [keras.ops.convert_to_tensor(one) for one in rows]
    made = model(given if len(given) > 1 else given[0], training=False)
    return [keras.ops.convert_to_numpy(one) for one in (made if isinstance(made, (list, tuple)) else [made])]
