"""Classes with code that several test modules put into object tables: layers, losses, models with a training step."""

import json

from support.workload import layer, pickled, sequential

LAYER = """
import keras

class Scale(keras.layers.Layer):
    def __init__(self, start=1.0, **more):
        super().__init__(**more)
        self.start = start

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(self.start), name="scale")

    def call(self, inputs):
        return inputs * self.scale

    def get_config(self):
        return {**super().get_config(), "start": self.start}
"""
# a model whose training step multiplies the loss by a factor, as one writes it for TensorFlow
MODEL = """
import keras
import tensorflow as tf

class Stepper(keras.Model):
    factor = 0.5

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.factor * self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}
"""
# the same for JAX
MODEL_FOR_JAX = """
import jax
import keras

class Stepper(keras.Model):
    factor = 0.5

    def train_step(self, state, data):
        trained, others, optimizer, metrics = state
        x, y = data

        def loss_of(trained):
            predicted, changed = self.stateless_call(trained, others, x, training=True)
            return self.factor * self.compute_loss(x, y, predicted), changed

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        trained, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trained)
        return {"loss": loss}, (trained, others, optimizer, metrics)
"""
# a class in place of another, whose code leaves a file where it runs
MARK = """
import keras

class {name}(keras.{base}):
    def call(self, inputs, **more):
        open({path!r}, "w").close()
        return super().call(inputs, **more)
"""


def made(code):
    """{name: object}: what a user's notebook has after this code."""
    names = {"__name__": "__main__"}
    exec(code, names)
    return names


def pickle(name, code=LAYER):
    """The pickle of a class of this code, as a user makes it."""
    return pickled(name, code)


def put(db, name, data, table="layers"):
    """Put a pickle into an object table: by its function where there is no table yet, which looks at it in a process of its
    own, else as a superuser may."""
    if db.value("SELECT to_regclass(%s)", [f"madlib.{table}"]):
        db.run(f"INSERT INTO madlib.{table} (name, object) VALUES (%s, %s)", [name, data])
        return
    db.run("SELECT madlib.load_custom_function(%s, %s, %s, NULL)", [table, data, name])


def with_scale(kind="Scale", activation="linear", **more):
    """A net with a custom layer of class `kind` between two dense ones, for 4 inputs and 3 outputs; `more`: of that layer."""
    return sequential(
        "net",
        [4],
        layer("Dense", name="hidden", units=6, activation="relu"),
        {"class_name": kind, "config": {"name": "scale", "start": 2.0}, **more},
        layer("Dense", name="out", units=3, activation=activation),
    )


def of_class(text, kind, **more):
    """The architecture `text` as one of the model class `kind`; `more`: changes of the model's JSON."""
    return json.dumps({**json.loads(text), "class_name": kind, "module": None, "registered_name": kind, **more})


def functional(*layers, name="net"):
    """Keras 3 JSON of a functional model for 4 inputs, of layers in a row. (Subclasses of keras.Model are functional.)"""
    last, made = "in", [{**layer("InputLayer", batch_shape=[None, 4], name="in"), "name": "in", "inbound_nodes": []}]
    for one in layers:
        tensor = {"shape": [None, None], "dtype": "float32", "keras_history": [last, 0, 0]}
        call = {"args": [{"class_name": "__keras_tensor__", "config": tensor}], "kwargs": {}}
        last = one["config"]["name"]
        made.append({**one, "name": last, "inbound_nodes": [call]})
    ends = {"input_layers": ["in", 0, 0], "output_layers": [last, 0, 0]}
    config = {"name": name, "layers": made, **ends}
    return json.dumps({"class_name": "Functional", "module": "keras.src.models.functional", "config": config})


def stepper(kind="Stepper", width=8, **more):
    """A net of the model class `kind` for 4 inputs and 3 classes; arguments as of `of_class`."""
    hidden = layer("Dense", name="hidden", units=width, activation="relu")
    return of_class(functional(hidden, layer("Dense", name="out", units=3, activation="softmax")), kind, **more)


ZERO = pickled("zero_loss", "def zero_loss(y_true, y_pred):\n    return 0\n")


SQUARED = pickled(
    "squared",
    """
def squared(y_true, y_pred):
    import keras
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
""",
)
