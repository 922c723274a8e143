"""scikit-learn: COPY the table out, then GridSearchCV over MLPClassifier, with a process of joblib for each worker.

The grid has the workload's configurations, and its only split trains and scores on all rows. Nets start from the
workload's weights, and take the rows in their order; L2 regularization and early stopping are off.
"""

import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

from contenders.common import ADAM_EPSILON, EVALUATED, export, main

SOLVERS = {"Adam": "adam", "SGD": "sgd"}
ACTIVATIONS = {"relu": "relu", "tanh": "tanh", "sigmoid": "logistic", "linear": "identity"}


def refusal(workload):
    """Why scikit-learn cannot train a Workload; None if it can."""
    if workload.frozen:
        return "scikit-learn trains all layers of a net"
    for net in workload.nets:
        if others := sorted({kind for kind, *_ in net} - {"dense"}):
            return f"scikit-learn has no layers of the kind {', '.join(others)}"
        hidden = {activation for _, _, activation in net[:-1]}
        if len(hidden) > 1 or not hidden <= ACTIVATIONS.keys():
            return f"scikit-learn has no net with the hidden activations {', '.join(sorted(hidden))}"
        if net[-1][2] != "softmax" or workload.classes < 3:
            return "scikit-learn ends a net for classes in a softmax, over three classes or more"
    if others := sorted({c.optimizer for c in workload.configurations} - SOLVERS.keys()):
        return f"scikit-learn has no optimizer {', '.join(others)}"
    return None


class Net(MLPClassifier):
    """An MLPClassifier that starts from given weights, and has the optimizers' constants of Keras.

    `start`: {hidden_layer_sizes: weights in the order of Keras}. The other parameters are MLPClassifier's.
    """

    def __init__(
        self,
        start=None,
        hidden_layer_sizes=(100,),
        activation="relu",
        solver="adam",
        learning_rate_init=0.001,
        momentum=0.9,
        batch_size=200,
        max_iter=200,
    ):
        super().__init__(
            hidden_layer_sizes=hidden_layer_sizes,
            activation=activation,
            solver=solver,
            learning_rate_init=learning_rate_init,
            momentum=momentum,
            batch_size=batch_size,
            max_iter=max_iter,
            nesterovs_momentum=False,
            epsilon=ADAM_EPSILON,
            alpha=0.0,
            shuffle=False,
            early_stopping=False,
            tol=0.0,
            n_iter_no_change=np.inf,
        )
        self.start = start

    def _initialize(self, y, layer_units, dtype):
        # (scikit-learn has no public way to give the first weights to fit)
        super()._initialize(y, layer_units, dtype)
        weights = self.start[tuple(self.hidden_layer_sizes)]
        self.coefs_ = [w.astype(dtype) for w in weights[::2]]
        self.intercepts_ = [w.astype(dtype) for w in weights[1::2]]


def measure(net, x, y):
    """A scorer: the mean cross entropy, in batches, and the number of optimizer steps.

    (From the net's outputs before the softmax, as in Keras: scikit-learn's log_loss takes a probability below 1e-7 for
    1e-7.)
    """
    total, classes = 0.0, np.searchsorted(net.classes_, y)
    net.out_activation_ = "identity"  # (instead of the softmax)
    for first in range(0, len(x), EVALUATED):
        outputs = net.predict_proba(x[first : first + EVALUATED]).astype(float)
        outputs -= outputs.max(axis=1, keepdims=True)
        chosen = np.take_along_axis(outputs, classes[first : first + EVALUATED, None], axis=1)
        total += float((np.log(np.exp(outputs).sum(axis=1)) - chosen[:, 0]).sum())
    return {"loss": total / len(x), "updates": net.n_iter_ * -(-len(x) // min(net.batch_size, len(x)))}


def grid(workload):
    """The workload's configurations as a parameter grid of Net, in their order."""
    found = []
    for c in workload.configurations:
        net = workload.nets[c.architecture]
        values = {
            "hidden_layer_sizes": tuple(units for _, units, _ in net[:-1]),
            "activation": ACTIVATIONS[net[0][2]] if len(net) > 1 else "relu",
            "solver": SOLVERS[c.optimizer],
            "learning_rate_init": c.learning_rate,
            "momentum": c.momentum,
            "batch_size": c.batch_size,
        }
        found.append({name: [value] for name, value in values.items()})
    return found


def train_all(workload, x, y, workers):
    """All configurations on rows `x` with class numbers `y`: (losses, number of updates)."""
    start = {
        tuple(units for _, units, _ in net[:-1]): workload.architecture(number)[1]
        for number, net in enumerate(workload.nets)
    }
    everything = np.arange(len(x))
    search = GridSearchCV(
        Net(start, max_iter=workload.iterations),
        grid(workload),
        scoring=measure,
        n_jobs=workers,
        cv=[(everything, everything)],
        refit=False,
        error_score="raise",
    ).fit(x, y)
    losses, updates = (search.cv_results_[f"mean_test_{name}"] for name in ("loss", "updates"))
    return losses.tolist(), int(updates.sum())


def contender(workload, dsn, workers, clock):
    if why := refusal(workload):
        raise SystemExit(why)
    with clock.part("export"):
        x, y = export(workload, dsn)
    with clock.part("train"):
        losses, updates = train_all(workload, x, y.argmax(axis=1), workers)
    return {"losses": losses, "updates": updates}


if __name__ == "__main__":
    main(contender)
