"""The plain kernel: one Keras step per mini-batch. It does whatever Keras does, and is the measure of the others."""

NAME = "plain"


def train(model, batches, inputs, class_weight=None):
    """Train `model` on `batches`, tuples of arrays of which the first `inputs` are inputs.

    Returns {"loss": mean loss over the rows, "rows": rows, ...metrics}. Equal, bit for bit, to
    `model.train_on_batch` over the same batches.
    """
    model.reset_metrics()
    logs, rows = {}, 0
    for batch in batches:
        x, y = split(batch, inputs)
        logs = model.train_on_batch(x, y, class_weight=class_weight, return_dict=True)
        rows += len(batch[0])
    return {**{name: float(value) for name, value in logs.items()}, "rows": rows}


def evaluate(model, batches, inputs):
    """Loss and metrics of `model` over `batches`, without training. Returns as `train` does."""
    model.reset_metrics()
    logs, rows = {}, 0
    for batch in batches:
        x, y = split(batch, inputs)
        logs = model.test_on_batch(x, y, return_dict=True)
        rows += len(batch[0])
    return {**{name: float(value) for name, value in logs.items()}, "rows": rows}


def split(batch, inputs):
    """A batch -> (x, y) as Keras wants them: an array where there is one, else a list."""
    x, y = batch[:inputs], batch[inputs:]
    return (x[0] if len(x) == 1 else list(x)), (y[0] if len(y) == 1 else list(y))
