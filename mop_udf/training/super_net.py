"""The layers of a super-net, which trains all members of a model space as one net with shared weights. Runs in the trainer.

For each mini-batch, `Paths` draws a random option for each choice point (a single path, uniformly: Guo et al., "Single Path
One-Shot Neural Architecture Search with Uniform Sampling", ECCV 2020). The other layers let pass what the member with these
options computes: `PathWidth` the first channels of a layer that may have several widths (as the masks of FBNetV2: Wan et al.,
CVPR 2020), `PathChoice` the output of one of several layers. So one compiled net trains every member.

pg_mop.spaces.super_net builds the net; architecture JSON of users cannot name these layers (architecture.check).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

CLOSED = -1.0  # the option of a point that is not open


@keras.saving.register_keras_serializable("pg_mop")
class Paths(keras.layers.Layer):
    """The option of each choice point, by index; -1: the point is not open. Shape (rows, points), equal for all rows.

    In training, the options are random; else they are those of the weight `member`, which says which member is evaluated.
    """

    def __init__(self, counts: Sequence[int], parents: Sequence[Any], seed: int | None = None, **more: Any) -> None:
        """`counts`: the number of options of each point; `parents`: [number of an earlier point, its options for which it
        is open], or None: always."""
        super().__init__(**more)
        self.counts, self.parents, self.seed = list(counts), list(parents), seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: Any) -> None:
        self.member = self.add_weight(
            shape=(len(self.counts),), initializer="zeros", trainable=False, name="member", dtype="float32"
        )
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        given = ops.convert_to_tensor(self.member)
        if training:
            counts = np.array(self.counts, "float32")
            drawn = keras.random.uniform((len(self.counts),), dtype="float32", seed=self.seed_generator)
            given = ops.minimum(ops.floor(drawn * counts), counts - 1)
        options: list[Any] = []
        for number, parent in enumerate(self.parents):
            option = given[number]
            if parent is not None:
                is_open = _among(options[parent[0]], parent[1])
                option = option * is_open + CLOSED * (1 - is_open)
            options.append(option)
        return ops.broadcast_to(ops.expand_dims(ops.stack(options), 0), (ops.shape(inputs)[0], len(options)))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], len(self.counts))

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        return keras.KerasTensor((inputs.shape[0], len(self.counts)), "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "counts": self.counts, "parents": self.parents, "seed": self.seed}


@keras.saving.register_keras_serializable("pg_mop")
class PathWidth(keras.layers.Layer):
    """The first channels of the first input, and zeros in place of the others. The second input: of `Paths`."""

    def __init__(self, point: int, widths: Sequence[int], **more: Any) -> None:
        """`widths`: of each option of the choice point of this number; a point that is not open leaves all channels."""
        super().__init__(**more)
        self.point, self.widths = point, list(widths)

    def call(self, inputs: Any) -> Any:
        values, paths = inputs
        mask = _shown(paths, self.point, self.widths, values.shape[-1])
        mask = ops.reshape(mask, (-1, *[1] * (len(values.shape) - 2), values.shape[-1]))
        return ops.where(mask, values, ops.zeros_like(values))  # (a product with 0 is NaN where a channel overflows)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "point": self.point, "widths": self.widths}


@keras.saving.register_keras_serializable("pg_mop")
class PathNormalization(keras.layers.Layer):
    """A batch normalization that some paths lack, or in which they have several widths: a mini-batch leaves the moving averages
    of what its path lacks as they are. Inputs as of `PathWidth`, which has to follow it where there are widths."""

    def __init__(
        self,
        normalization: Any,
        conditions: Sequence[Sequence[Any]] = (),
        point: int | None = None,
        widths: Sequence[int] = (),
        **more: Any,
    ) -> None:
        """`normalization`: the BatchNormalization, or its config; where there are `widths`, over the last axis. `conditions`:
        [number of a choice point, its options], ...: all of them hold for the paths that have the layer. `point` and `widths`
        as of `PathWidth`; None: all paths have all channels."""
        super().__init__(**more)
        self.conditions, self.point, self.widths = list(conditions), point, list(widths)
        given = isinstance(normalization, dict)
        self.normalization = keras.layers.deserialize(normalization) if given else normalization

    def build(self, input_shape: Any) -> None:
        self.normalization.build(input_shape[0])
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        values, paths = inputs
        averages = self.normalization.moving_mean, self.normalization.moving_variance
        before = [ops.convert_to_tensor(average) + 0.0 for average in averages]
        made = self.normalization(values, training=training)
        if training:
            has = _holds(paths, self.conditions)[0]
            if self.point is not None:
                has = ops.logical_and(has, _shown(paths, self.point, self.widths, values.shape[-1])[0])
            for average, old in zip(averages, before):
                average.assign(ops.where(has, ops.convert_to_tensor(average), old))
        return made

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        own = {"conditions": self.conditions, "point": self.point, "widths": self.widths}
        return {**super().get_config(), **own, "normalization": keras.layers.serialize(self.normalization)}


@keras.saving.register_keras_serializable("pg_mop")
class PathGate(keras.layers.Layer):
    """The first input for a path whose conditions hold, else zeros: the input of a branch. The second input: of `Paths`.

    So a branch that is not chosen computes nothing that overflows, and its gradients are 0: the gradient of an output that
    `PathChoice` leaves out is 0, but its product with an infinite derivative within the branch would be NaN.
    """

    def __init__(self, conditions: Sequence[Any], **more: Any) -> None:
        """`conditions`: [number of a choice point, its options], ...; all of them must hold."""
        super().__init__(**more)
        self.conditions = list(conditions)

    def call(self, inputs: Any) -> Any:
        values, paths = inputs
        return ops.where(_for_rows(_holds(paths, self.conditions), values), values, ops.zeros_like(values))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "conditions": self.conditions}


@keras.saving.register_keras_serializable("pg_mop")
class PathChoice(keras.layers.Layer):
    """One of several inputs of equal shapes: the last one whose conditions hold, else the first. The last input: of `Paths`."""

    def __init__(self, conditions: Sequence[Sequence[Any]], **more: Any) -> None:
        """`conditions`: of each input but the first, as of `PathGate`."""
        super().__init__(**more)
        self.conditions = list(conditions)

    def call(self, inputs: Any) -> Any:
        found, *values, paths = inputs
        for value, conditions in zip(values, self.conditions):
            found = ops.where(_for_rows(_holds(paths, conditions), value), value, found)
        return found

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "conditions": self.conditions}


def path_position(model: Any) -> int | None:
    """The position of the weight that says which member is evaluated, among a super-net's weights; None where there is one
    member alone."""
    for layer in model.layers:
        if isinstance(layer, Paths):
            return next(at for at, weight in enumerate(model.weights) if weight is layer.member)
    return None


def _shown(paths: Any, point: int, widths: Sequence[int], channels: int) -> Any:
    """Whether the path of a row has each channel: shape (rows, channels). Arguments as of `PathWidth`."""
    option = ops.cast(paths[:, point], "int32")
    width = ops.take(np.array(widths, "int32"), ops.maximum(option, 0), axis=0)
    width = ops.where(ops.equal(option, int(CLOSED)), channels, width)
    return ops.less(ops.expand_dims(ops.arange(channels, dtype="int32"), 0), ops.expand_dims(width, 1))


def _holds(paths: Any, conditions: Sequence[Any]) -> Any:
    """Whether all conditions hold for the path of a row: shape (rows,). `conditions`: as of `PathGate`."""
    holds = ops.ones_like(paths[:, 0], dtype="bool")
    for point, options in conditions:
        holds = ops.logical_and(holds, _among(paths[:, point], options) > 0)
    return holds


def _for_rows(holds: Any, values: Any) -> Any:
    """A boolean for each row, shape (rows, 1, ...), as `ops.where` takes it beside `values`."""
    return ops.reshape(holds, (-1, *[1] * (len(values.shape) - 1)))


def _among(option: Any, options: Sequence[int]) -> Any:
    """1.0 where an option (a tensor) is one of some, else 0.0."""
    found: Any = 0.0
    for one in options:
        found = found + ops.cast(ops.equal(option, float(one)), "float32")
    return found
