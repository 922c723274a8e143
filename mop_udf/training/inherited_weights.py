"""The first weights of a model that inherits from a trained one: copied, widened, and inserted as the identity. NumPy.

Wider and deeper layers follow Net2WiderNet and Net2DeeperNet (Chen, Goodfellow, Shlens: "Net2Net: Accelerating Learning via
Knowledge Transfer", ICLR 2016): the new model computes what the old one does, within rounding. A unit that is repeated passes
its weight on in random shares, other ones for each unit that takes its output, in place of equal shares and noise: so what the
model computes stays, and the repeated units still learn different things.

pg_mop.spaces.inheritance finds what each layer inherits, and describes the channel maps.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_CHANNELS = 1 << 24
LEAST_SHARE = 0.25  # of a repeated unit, before the shares of all its repetitions are made to sum up to 1


class InheritanceError(ValueError):
    """The layers of two models do not fit what one is to inherit from the other."""


def inherited(parent: Any, child: Any, layers: Sequence[Mapping[str, Any]], seed: int) -> list[np.ndarray]:
    """The weights of the Keras model `child`, in the order of get_weights(): those of its layers that inherit nothing stay.

    `parent`: a Keras model with the trained weights; `layers`: as pg_mop.spaces.inheritance gives them; `seed`: of random
    repetitions and shares. Raises InheritanceError.
    """
    values: dict[int, np.ndarray] = {}
    for entry in layers:
        layer = _layer(child, entry["layer"])
        shapes = [tuple(weight.shape) for weight in layer.weights]
        if entry["how"] == "identity":
            made = _normalization(layer) if _normalizes(layer) else identity(shapes, channels(entry.get("out"), seed))
        else:
            made = changed(
                _layer(parent, entry["from"]).get_weights(),
                channels(entry.get("in"), seed),
                channels(entry.get("out"), seed),
                np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(str(entry["layer"]).encode())]),
                _normalizes(layer),
            )
        if [array.shape for array in made] != shapes:
            raise InheritanceError(f"layer {entry['layer']!r} has weights of shapes {shapes}: it cannot inherit them")
        values.update(zip(map(id, layer.weights), made))
    return [values[id(one)] if id(one) in values else np.asarray(one) for one in child.weights]


def channels(one: Any, seed: int) -> np.ndarray | None:
    """The channel of the parent that each channel of the child repeats; None: the identity. Raises InheritanceError."""
    return None if one is None else _channels(one, seed)[0]


def _channels(one: Any, seed: int) -> tuple[np.ndarray, int]:
    """The same, and how many channels the parent has. A number stands for the identity of so many channels."""
    if isinstance(one, int):
        _check_count(one)
        return np.arange(one), one
    kind, *rest = one
    if kind == "wide":
        name, before, after = rest
        _check_count(before, after)
        draw = random.Random(f"{seed} {name}")
        return np.array([*range(before), *(draw.randrange(before) for _ in range(after - before))], np.int64), before
    if kind == "flat":
        found, before = _channels(rest[0], seed)
        _check_count(rest[1], rest[1] * len(found))
        return (np.arange(rest[1])[:, None] * before + found).reshape(-1), rest[1] * before
    if kind == "join":
        parts = [_channels(part, seed) for part in rest[0]]
        starts = np.cumsum([0, *(before for _, before in parts)])
        return np.concatenate([start + found for start, (found, _) in zip(starts, parts)]), int(starts[-1])
    if kind == "then":
        (first, before), (second, _) = (_channels(part, seed) for part in rest)
        return first[second], before
    raise InheritanceError(f"there is no channel map {kind!r}")


def _check_count(*counts: Any) -> None:
    """Raises InheritanceError for a number of channels that no layer has: this JSON may come from a client."""
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= MOST_CHANNELS:
            raise InheritanceError(f"{count!r} is no number of channels")


def changed(
    weights: Sequence[np.ndarray],
    taken: np.ndarray | None,
    made: np.ndarray | None,
    draw: np.random.Generator,
    vectors: bool = False,
) -> list[np.ndarray]:
    """The weights of a layer whose input, output or both have repeated channels.

    `weights`: of a Dense layer or a convolution: kernel (..., input channels, output channels) and perhaps bias; `vectors`: of
    a batch normalization, a vector of all channels each. `taken`, `made`: channel maps of its input and output.
    """
    if vectors:
        return [array if made is None else array[made] for array in weights]
    found = list(weights)
    if taken is not None:
        kernel = found[0][..., taken, :]
        found[0] = (kernel * shares(taken, kernel.shape[-1], draw)).astype(kernel.dtype)
    if made is not None:
        found[0] = found[0][..., made]
        found[1:] = [array[made] for array in found[1:]]
    return found


def shares(taken: np.ndarray, units: int, draw: np.random.Generator) -> np.ndarray:
    """The shares of repeated input channels in the weights of each of `units`: shape (channels, units), in float64. Those of
    all repetitions of a channel sum up to 1, so that a channel without repetition has 1."""
    drawn = draw.uniform(LEAST_SHARE, 1.0, (len(taken), units))
    sums = np.zeros((int(taken.max()) + 1, units))
    np.add.at(sums, taken, drawn)
    return drawn / sums[taken]


def identity(shapes: Sequence[Sequence[int]], made: np.ndarray | None = None) -> list[np.ndarray]:
    """Weights with which a Dense layer, or a convolution with padding "same" and strides 1, passes its input on. `made`: the
    channel map of the output, where it has more channels than the input."""
    kernel, *rest = [np.zeros(shape, np.float32) for shape in shapes]
    here = np.arange(kernel.shape[-2]) if made is None else made
    # (of an even window, Keras pads one more at the end)
    middle = tuple((size - 1) // 2 for size in kernel.shape[:-2])
    kernel[(*middle, here, np.arange(len(here)))] = 1.0
    return [kernel, *rest]


def _normalizes(layer: Any) -> bool:
    return type(layer).__name__ == "BatchNormalization"


def _normalization(layer: Any) -> list[np.ndarray]:
    """Weights with which a batch normalization passes its input on, as long as it does not train."""
    wanted = {id(layer.moving_variance): 1.0 - layer.epsilon, id(layer.gamma): 1.0}
    return [np.full(weight.shape, wanted.get(id(weight), 0.0), np.float32) for weight in layer.weights]


def _layer(model: Any, name: str) -> Any:
    try:
        return model.get_layer(name)
    except ValueError:
        raise InheritanceError(f"the model has no layer {name!r}") from None
