"""Models that pg_mop builds, compared with those of plain Keras."""

import numpy as np


def functional(shape, call):
    """A model of what `call` makes of its input."""
    import keras

    x = keras.Input(shape)
    return keras.Model(x, call(x, keras.layers, keras.ops))


def assert_same(model, shapes):
    """The model's JSON gives, after the check, the model itself; and `shapes` are those of its outputs."""
    import keras

    from mop_udf.architecture import architecture, architecture_shapes
    from mop_udf.training import models

    text = model.to_json()
    made = architecture.check(text)
    built = models.build(made, 3)
    assert models.output_shapes(built) == shapes
    for known, shape in zip(architecture_shapes.output_widths(made, len(shapes)), shapes):
        assert known in (None, shape[-1])
    keras.utils.set_random_seed(3)
    plain = keras.models.model_from_json(text)
    assert [w.shape for w in built.weights] == [w.shape for w in plain.weights]
    for weight, other in zip(built.get_weights(), plain.get_weights()):
        assert (weight == other).all(), "the same seed draws the same initial weights"
    inputs = [np.random.default_rng(1).random((2, *i.shape[1:]), "f4") for i in plain.inputs]
    inputs = inputs[0] if len(inputs) == 1 else inputs
    outputs, others = built(inputs), plain(inputs)
    for output, other in zip([outputs] if len(shapes) == 1 else outputs, [others] if len(shapes) == 1 else others):
        assert (np.asarray(output) == np.asarray(other)).all()
