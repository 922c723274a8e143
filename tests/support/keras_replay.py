"""Train as runs' logs say, with Keras alone. Each line of the input is a question, each line of the output its answer.

A question has `jobs` and `average`. A job has, for each configuration: architecture JSON, Keras optimizer and loss, batch
size, epochs, the Keras seed of the initial weights (or `weights`, these themselves), and the packed rows of the segments in
the order of its visits. With `average`, every visit is a replica's, whose weights are averaged after each of the job's
iterations; the answer is a list of weights. Else the answer is a list of {"plain": weights}; of a job with `default`, also
the weights where Keras chooses itself whether to compile. This program knows nothing of pg_mop.

What changes while a configuration is trained, a visit says itself: arguments of the optimizer, batch_size,
class_weight, dropout (the rate of all Dropout layers); learning_rates, one for each batch; w, the sample weights.
"""

import base64
import json
import os
import sys

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", NPROC="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import keras  # noqa: E402
import numpy as np  # noqa: E402

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
elif keras.backend.backend() == "torch":
    import torch

    torch.set_num_threads(1)


def array(packed):
    """The array of a buffer: float32, or int16 where there are two bytes for each element."""
    data = base64.b64decode(packed["bytes"])
    return np.frombuffer(data, "<i2" if len(data) == 2 * np.prod(packed["shape"]) else "<f4").reshape(packed["shape"])


def compiled(job, jit_compile):
    keras.utils.set_random_seed(job["seed"])
    model = keras.models.model_from_json(job["architecture"])
    if "weights" in job:
        flat, weights = np.frombuffer(base64.b64decode(job["weights"]), "<f4"), []
        for weight in model.weights:
            weights.append(flat[: np.prod(weight.shape, dtype=int)].reshape(weight.shape))
            flat = flat[weights[-1].size :]
        model.set_weights(weights)
    optimizer = getattr(keras.optimizers, job["optimizer"])(**job["arguments"])
    model.compile(optimizer=optimizer, loss=job["loss"], metrics=job["metrics"], jit_compile=jit_compile)
    return model


def train(model, job, visit):
    x = np.concatenate([array(b) for b in visit["x"]])
    y = np.concatenate([array(b) for b in visit["y"]])
    w = np.concatenate([array(b)[:, 0] for b in visit["w"]]) if "w" in visit else None
    size, rates = visit.get("batch_size", job["batch_size"]), iter(visit.get("learning_rates", ()))
    weights = {int(k): w for k, w in visit["class_weight"].items()} if "class_weight" in visit else None
    change(model, visit)
    for _ in range(job["epochs"]):
        for start in range(0, len(x), size):
            if "learning_rates" in visit:
                model.optimizer.learning_rate = next(rates)
            here = slice(start, start + size)
            model.train_on_batch(x[here], y[here], sample_weight=None if w is None else w[here], class_weight=weights)
    return len(x)


def change(model, visit):
    """Give the model the numbers that the visit has."""
    numbers = [(model.optimizer, name, value) for name, value in visit.get("arguments", {}).items()]
    if "dropout" in visit:
        numbers += [(layer, "rate", visit["dropout"]) for layer in model.layers if hasattr(layer, "rate")]
    for where, name, value in numbers:
        before = getattr(where, name)
        setattr(where, name, value)
        if isinstance(before, float) and before != value:  # it is a constant of what was compiled
            model.make_train_function(force=True)


def encoded(weights):
    return base64.b64encode(b"".join(np.asarray(w, "<f4").tobytes() for w in weights)).decode()


def finished(model):
    """The model's weights as `fit` leaves them at its end."""
    model.optimizer.finalize_variable_values(model.trainable_weights)
    return model.get_weights()


def weights_of(job, jit_compile):
    model = compiled(job, jit_compile)
    for visit in job["visits"]:
        train(model, job, visit)
    return encoded(finished(model))


def average_of(job):
    replicas = [compiled(job, False) for _ in job["visits"]]
    for iteration in range(job["iterations"]):
        rows = [train(model, job, visit) for model, visit in zip(replicas, job["visits"])]
        if iteration == job["iterations"] - 1:
            return encoded(mean(map(finished, replicas), rows))
        weights = mean((model.get_weights() for model in replicas), rows)
        for model in replicas:
            model.set_weights(weights)


def mean(models, rows):
    return [np.average(arrays, axis=0, weights=rows) for arrays in zip(*models)]


def answer(jobs, average):
    if average:
        return [average_of(job) for job in jobs]
    # (on JAX every operation would be compiled by itself; PyTorch has no other way)
    plain = keras.backend.backend() == "jax"
    return [
        {"plain": weights_of(job, plain), **({"default": weights_of(job, "auto")} if job.get("default") else {})}
        for job in jobs
    ]


# this process has imported Keras and runs no operation, so it may fork: a child answers each line
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        print(json.dumps(answer(**json.loads(line))), flush=True)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        print("null", flush=True)
