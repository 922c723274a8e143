"""The workloads: rows, architectures with initial weights, and configurations, all from fixed seeds."""

import dataclasses
import json

import numpy as np


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One row of a model selection table; `architecture` counts from 0."""

    architecture: int
    optimizer: str
    learning_rate: float
    batch_size: int
    momentum: float = 0.9  # of SGD

    @property
    def compile_params(self):
        momentum = f", momentum={self.momentum}" if self.optimizer == "SGD" else ""
        return (
            f"loss='categorical_crossentropy', optimizer='{self.optimizer}(learning_rate={self.learning_rate}"
            f"{momentum})', metrics=['accuracy']"
        )

    def optimizer_of_keras(self):
        import keras

        momentum = {"momentum": self.momentum} if self.optimizer == "SGD" else {}
        return getattr(keras.optimizers, self.optimizer)(learning_rate=self.learning_rate, **momentum)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A workload.

    `nets`: the layers of each architecture as (kind, ...) tuples; the first `frozen` layers are not trained.
    `validation`: the number of validation rows.
    """

    about: str
    rows: int
    shape: tuple
    iterations: int
    nets: tuple
    configurations: tuple
    classes: int = 10
    validation: int = 0
    frozen: int = 0

    def data(self, validation=False):
        """(x float32 [rows, *shape], y int [rows]): noisy classes that a net can mostly distinguish."""
        source = np.random.default_rng(1)
        y = source.integers(0, self.classes, self.rows + self.validation)
        centres = source.normal(size=(self.classes, *self.shape)).astype("f4")
        x = (0.5 * centres[y] + source.normal(size=(len(y), *self.shape))).astype("f4")
        return (x[self.rows :], y[self.rows :]) if validation else (x[: self.rows], y[: self.rows])

    def architecture(self, number):
        """(JSON of Keras 3, weights as a list of float32 arrays)."""
        source = np.random.default_rng(100 + number)
        layers = [_layer("InputLayer", "in", batch_shape=[None, *self.shape])]
        weights, shape = [], list(self.shape)
        for place, (kind, *arguments) in enumerate(self.nets[number]):
            name, trained = f"l{place}", place >= self.frozen
            if kind == "dense":
                units, activation = arguments
                layers.append(_layer("Dense", name, units=units, activation=activation, trainable=trained))
                weights += [_glorot(source, (shape[0], units)), np.zeros(units, "f4")]
                shape = [units]
            elif kind == "convolution":
                filters, size = arguments
                layers.append(
                    _layer(
                        "Conv2D", name, filters=filters, kernel_size=[size, size], activation="relu", trainable=trained
                    )
                )
                weights += [_glorot(source, (size, size, shape[2], filters)), np.zeros(filters, "f4")]
                shape = [shape[0] - size + 1, shape[1] - size + 1, filters]
            elif kind == "pool":
                layers.append(_layer("MaxPooling2D", name, pool_size=[2, 2]))
                shape = [shape[0] // 2, shape[1] // 2, shape[2]]
            else:
                layers.append(_layer("Flatten", name))
                shape = [int(np.prod(shape))]
        text = json.dumps(
            {
                "module": "keras",
                "class_name": "Sequential",
                "registered_name": None,
                "config": {"name": f"net{number}", "layers": layers},
            }
        )
        return text, weights

    def compiled(self, key):
        """Configuration `key` (counting from 0) as a compiled model of plain Keras with its initial weights."""
        import keras

        configuration = self.configurations[key]
        text, weights = self.architecture(configuration.architecture)
        model = keras.models.model_from_json(text)
        model.compile(
            optimizer=configuration.optimizer_of_keras(), loss="categorical_crossentropy", metrics=["accuracy"]
        )
        model.set_weights(weights)
        return model


def _layer(kind, name, **config):
    return {"module": "keras.layers", "class_name": kind, "registered_name": None, "config": {"name": name, **config}}


def _glorot(source, shape):
    receptive = int(np.prod(shape[:-2]))
    limit = np.sqrt(6 / (receptive * (shape[-2] + shape[-1])))
    return source.uniform(-limit, limit, shape).astype("f4")


def dense(*widths):
    """The layers of a dense net for 10 classes."""
    return (*(("dense", w, "relu") for w in widths), ("dense", 10, "softmax"))


def _shuffled(configurations):
    """The configurations in random order. Except for pg_mop's scheduler, the contenders train them in this order."""
    return tuple(configurations[i] for i in np.random.default_rng(2).permutation(len(configurations)))


def _grid(nets, optimizers, batch_sizes):
    """Every combination; optimizers: {name: learning rates}."""
    return tuple(
        Configuration(net, name, rate, size)
        for net in nets
        for size in batch_sizes
        for name, rates in optimizers.items()
        for rate in rates
    )


CONVOLUTIONS = ("convolution", 16, 3), ("pool",), ("convolution", 32, 3), ("pool",), ("flatten",)

DENSE_SMALL = Workload(
    "10,000 x 64, a net 64-64-64-10, 16 configurations, 5 iterations",
    10_000,
    (64,),
    5,
    (dense(64, 64),),
    _grid([0], {"Adam": [0.0003, 0.001, 0.003, 0.01], "SGD": [0.003, 0.01, 0.03, 0.1]}, [25, 50]),
)

WORKLOADS = {
    "dense-small": DENSE_SMALL,
    "dense-wide": Workload(
        "20,000 x 512, hidden layers of 1,024, 6 configurations, 2 iterations",
        20_000,
        (512,),
        2,
        (dense(1024, 1024),),
        _grid([0], {"Adam": [0.0003, 0.001, 0.003], "SGD": [0.003, 0.01, 0.03]}, [100]),
    ),
    "wide-rows": Workload(
        "200,000 x 100, a net 256-128-10, 12 configurations, 3 iterations",
        200_000,
        (100,),
        3,
        (dense(256, 128),),
        _grid([0], {"Adam": [0.0003, 0.001, 0.003], "SGD": [0.003, 0.01, 0.03]}, [100, 200]),
    ),
    "cnn": Workload(
        "4,096 x 28 x 28 x 1, two convolutions, 8 configurations, 3 iterations",
        4096,
        (28, 28, 1),
        3,
        ((*CONVOLUTIONS, *dense(64)),),
        _grid([0], {"Adam": [0.0003, 0.001], "SGD": [0.01, 0.03]}, [32, 64]),
    ),
    "mixed": Workload(
        "10,000 x 64, nets from 32 to 768 wide, 12 configurations of which the dearest costs about 10 times "
        "the cheapest, 4 iterations",
        10_000,
        (64,),
        4,
        (dense(32), dense(128, 128), dense(768, 768)),
        _shuffled(
            (
                *_grid([0], {"Adam": [0.001, 0.003], "SGD": [0.03]}, [100, 50]),
                *_grid([1], {"Adam": [0.001, 0.003], "SGD": [0.03]}, [50]),
                *_grid([2], {"Adam": [0.001, 0.003], "SGD": [0.03]}, [50]),
            )
        ),
    ),
    "dense-long": dataclasses.replace(
        DENSE_SMALL, about="10,000 x 64, a net 64-64-64-10, 16 configurations, 50 iterations", iterations=50
    ),
    "many": Workload(
        "2,000 x 16, a net 16-16-10, 200 configurations, 3 iterations",
        2000,
        (16,),
        3,
        (dense(16),),
        _grid([0], {"Adam": [0.0001 * 1.05**n for n in range(100)]}, [25, 50]),
    ),
    "transfer": Workload(
        "4,096 x 28 x 28 x 1, two convolutions that are not trained, 8 configurations of four heads, 3 iterations",
        4096,
        (28, 28, 1),
        3,
        tuple((*CONVOLUTIONS, *dense(width)) for width in (32, 64, 128, 256)),
        _grid([0, 1, 2, 3], {"Adam": [0.0003, 0.001]}, [32]),
        frozen=len(CONVOLUTIONS),
    ),
    "startup": Workload(
        "200 x 16, one configuration, one iteration", 200, (16,), 1, (dense(16),), _grid([0], {"Adam": [0.001]}, [20])
    ),
}
