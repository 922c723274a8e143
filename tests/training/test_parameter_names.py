"""The names of losses, metrics and optimizers that parameter strings may have are those of the installed Keras."""

import keras

from mop_udf.params import parameter_names as names


def test_the_names_are_those_of_the_installed_keras():
    for name in sorted(names.LOSSES):
        keras.losses.get(name)
    for name in sorted(names.METRICS - {"accuracy", "acc", "crossentropy", "ce"}):
        keras.metrics.get(name)
    assert set(names.OLD_LOSSES.values()) <= names.LOSSES and set(names.OLD_METRICS.values()) <= names.METRICS
    theirs = {n for n in dir(keras.optimizers) if isinstance(getattr(keras.optimizers, n), type)}
    assert set(names.OPTIMIZERS) <= theirs
