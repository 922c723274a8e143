"""Parameter strings of configurations, as literals. Standard library only: coordinator and trainer both read them.

Grammar (docs/contract/fit_multiple.md, section 4): `key = value, key = value`; commas and equals signs inside brackets do not separate,
quotes do not protect them. Nothing in a string is ever executed. Some values may be sequences (sequences.py), which
have a value for each iteration: :class:`Resolver` writes the strings that hold in one.
"""

import ast
import functools
import json
import math
import re
import warnings

from mop_udf import sequences
from mop_udf.sequences import Schedule, Sequence


class ParameterError(ValueError):
    """A parameter string that says nothing usable; the text names the offending part."""


MOST_CHARACTERS = 100_000

# an argument that the optimizer does not take is Keras' to refuse: that configuration fails, the others go on
OPTIMIZERS = (
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Adafactor",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
    "Muon",
)

# numbers of optimizers by which configurations may differ and yet share one compiled model
SCALARS = ("learning_rate", "decay", "momentum", "beta_1", "beta_2", "rho", "epsilon", "weight_decay")

LOSSES = frozenset(
    """
binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
categorical_hinge cosine_similarity ctc dice hinge huber kl_divergence
log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
squared_hinge tversky mae mape mse msle kld bce
BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge
CosineSimilarity Hinge Huber KLDivergence LogCosh MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
MeanSquaredLogarithmicError Poisson SquaredHinge CTC Dice Tversky
""".split()
)
# names of Keras 2 that Keras 3 has given up
OLD_LOSSES = {"logcosh": "log_cosh", "kullback_leibler_divergence": "kl_divergence"}
# labels of another form than ours: numbers of classes; in Circle, of classes that the rows of a batch are compared by
REFUSED_LOSSES = (
    "circle",
    "sparse_categorical_crossentropy",
    "SparseCategoricalCrossentropy",
    "serialize",
    "deserialize",
    "get",
)

METRICS = frozenset(
    """
accuracy acc crossentropy ce binary_accuracy binary_crossentropy categorical_accuracy categorical_crossentropy
categorical_hinge cosine_similarity hinge kl_divergence mae mape mse msle mean_absolute_error
mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson squared_hinge
top_k_categorical_accuracy auc f1_score f_beta_score false_negatives false_positives log_cosh_error precision r2_score
recall root_mean_squared_error true_negatives true_positives bce concordance_correlation pearson_correlation
AUC Accuracy BinaryAccuracy BinaryCrossentropy CategoricalAccuracy CategoricalCrossentropy CategoricalHinge
CosineSimilarity F1Score FBetaScore FalseNegatives FalsePositives Hinge KLDivergence LogCoshError MeanAbsoluteError
MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson Precision R2Score Recall
RootMeanSquaredError SquaredHinge TopKCategoricalAccuracy TrueNegatives TruePositives ConcordanceCorrelation
PearsonCorrelation
""".split()
)
OLD_METRICS = {
    "logcosh": "LogCoshError",
    "log_cosh": "LogCoshError",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
}
REFUSED_METRICS = (
    "sparse_categorical_accuracy",
    "sparse_categorical_crossentropy",
    "sparse_top_k_categorical_accuracy",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
)

COMPILE_KEYS = ("loss", "optimizer", "metrics", "loss_weights", "weighted_metrics", "sample_weight_mode")
FIT_KEYS = (
    "batch_size",
    "epochs",
    "verbose",
    "shuffle",
    "class_weight",
    "initial_epoch",
    "steps_per_epoch",
    "callbacks",
    "dropout",
    "stop",
    "keep",
)
SEQUENCE_KEYS = ("batch_size", "class_weight", "dropout")  # of the fit parameters: what may be a sequence
WITHOUT_EFFECT = ("verbose", "stop", "keep")  # on what an iteration gives
STOP_KEYS = ("patience", "min_delta", "target", "metric", "mode")
DEFAULTS = {
    "batch_size": 32,
    "epochs": 1,
    "verbose": 0,
    "shuffle": False,
    "class_weight": None,
    "initial_epoch": 0,
    "steps_per_epoch": None,
    "dropout": None,
    "callbacks": None,
    "stop": None,
    "keep": "last",
}
TENSORBOARD_KEYS = (
    "log_dir",
    "histogram_freq",
    "batch_size",
    "update_freq",
    "write_graph",
    "write_grad",
    "write_images",
)


def is_builtin_loss(name):
    """True where Keras knows the loss `name`, in any case."""
    return name.lower() in OLD_LOSSES or _canonical(name, LOSSES) is not None


def is_builtin_metric(name):
    """True where Keras knows the metric `name`, in any case."""
    return name.lower() in OLD_METRICS or _canonical(name, METRICS) is not None


def parse_compile_params(text):
    """A compile_params string -> dict.

    Keys: loss, optimizer (Keras' class name), optimizer_args (`lr` as learning_rate, None dropped; SCALARS may be
    a Sequence, the learning rate a Schedule), metrics (list of names, each once), loss_weights, weighted_metrics,
    sample_weight_mode. Raises ParameterError.
    """
    if text is None or not text.strip():
        raise ParameterError("the compile parameters are empty")
    values = {k: _strip_quotes(v) for k, v in split(text).items()}
    for key in values:
        if key not in COMPILE_KEYS:
            raise ParameterError(f"{_short(key)} is not accepted in compile parameters ({', '.join(COMPILE_KEYS)})")
    for key in ("loss", "optimizer"):
        if not values.get(key):
            raise ParameterError(f"{key!r} is required in compile parameters")
    loss = values["loss"]
    if not re.fullmatch(r"\w+", loss):
        raise ParameterError(f"loss {_short(loss)} is not a name")
    if loss.lower() in [r.lower() for r in REFUSED_LOSSES]:
        dense = _dense(loss)
        raise ParameterError(
            f"loss {loss!r} is not supported"
            + (f": labels are packed one-hot, for which it is {dense!r}" if dense else "")
        )
    name, arguments = parse_optimizer(values["optimizer"])
    mode = values.get("sample_weight_mode")
    if mode not in (None, "None", "temporal"):
        raise ParameterError(f"sample_weight_mode must be 'temporal' or None, not {_short(mode)}")
    return {
        "loss": OLD_LOSSES.get(loss.lower()) or _canonical(loss, LOSSES) or loss,
        "optimizer": name,
        "optimizer_args": arguments,
        "metrics": _metrics(values.get("metrics")),
        "loss_weights": _loss_weights(values.get("loss_weights")),
        "weighted_metrics": _weighted_metrics(values.get("weighted_metrics")),
        "sample_weight_mode": None if mode == "None" else mode,
    }


def _dense(name):
    """The loss or metric of one-hot labels that is `name` for numbers of classes; None where it is none of those."""
    dense = re.sub("^sparse_|^Sparse", "", name)
    return dense if dense != name else None


def parse_fit_params(text):
    """A fit_params string (or None) -> dict with every key of FIT_KEYS, defaults filled in.

    `stop` is None or a dict with every key of STOP_KEYS: a configuration stops when its metric has not become better by
    `min_delta` in `patience` evaluations, or has reached `target`. `keep`: 'last', or 'best' by that metric.
    `callbacks` is None or the keyword arguments of the one TensorBoard callback; `dropout` None, a rate, or {layer:
    rate}. Those of SEQUENCE_KEYS may be a Sequence, whose values :func:`_fit_value` gives. Raises ParameterError.
    """
    values = split(text) if text and text.strip() else {}
    for key in values:
        if key not in FIT_KEYS:
            raise ParameterError(f"{_short(key)} is not accepted in fit parameters ({', '.join(FIT_KEYS)})")
    callbacks = values.pop("callbacks", None)
    parsed = dict(DEFAULTS)
    for key, value in values.items():
        parsed[key] = _fit_sequence(key, value) if sequences.is_sequence_text(value) else _evaluate(key, value)
    if parsed["batch_size"] is None:
        parsed["batch_size"] = 32
    for key in SEQUENCE_KEYS:
        if not isinstance(parsed[key], Sequence) and parsed[key] is not None:
            parsed[key] = FIT_CHECKS[key](parsed[key])
    _whole("epochs", parsed["epochs"], 1)
    _whole("initial_epoch", parsed["initial_epoch"], 0)
    if parsed["initial_epoch"] >= parsed["epochs"]:
        raise ParameterError(f"initial_epoch ({parsed['initial_epoch']}) must be below epochs ({parsed['epochs']})")
    if parsed["steps_per_epoch"] is not None:
        _whole("steps_per_epoch", parsed["steps_per_epoch"], 1)
    if not (parsed["verbose"] is None or parsed["verbose"] == "auto" or isinstance(parsed["verbose"], int)):
        raise ParameterError(f"verbose must be an integer or 'auto', not {_short(parsed['verbose'])}")
    if not (isinstance(parsed["shuffle"], bool) or parsed["shuffle"] == "batch"):
        raise ParameterError(f"shuffle must be True, False or 'batch', not {_short(parsed['shuffle'])}")
    parsed["stop"] = _stop(parsed["stop"])
    if parsed["keep"] not in ("last", "best"):
        raise ParameterError(f"keep must be 'last' or 'best', not {_short(parsed['keep'])}")
    parsed["callbacks"] = None if callbacks in (None, "None", "[]") else _tensorboard(callbacks)
    return parsed


def _stop(value):
    if value is None:
        return None
    if not isinstance(value, dict) or not value or any(key not in STOP_KEYS for key in value):
        raise ParameterError(f"stop must be a dictionary with keys of {', '.join(STOP_KEYS)}, not {_short(value)}")
    stop = {"patience": None, "min_delta": 0.0, "target": None, "metric": "loss", "mode": None, **value}
    if stop["patience"] is None and stop["target"] is None:
        raise ParameterError(f"stop needs patience or target, as in stop={{'patience': 3}}, not {_short(value)}")
    if stop["patience"] is not None:
        _whole("patience of stop", stop["patience"], 1)
    for key in ("min_delta", "target"):
        if stop[key] is not None and not _is_number(stop[key]):
            raise ParameterError(f"{key} of stop must be a number, not {_short(stop[key])}")
    if stop["min_delta"] < 0:
        raise ParameterError(f"min_delta of stop must not be below 0, not {stop['min_delta']}")
    if not isinstance(stop["metric"], str):
        raise ParameterError(f"metric of stop must be the name of one, not {_short(stop['metric'])}")
    if stop["mode"] not in (None, "min", "max"):
        raise ParameterError(f"mode of stop must be 'min' or 'max', not {_short(stop['mode'])}")
    return stop


def parse_optimizer(text):
    """'Adam', "Adam()", 'SGD(lr=0.1, momentum=0.9)' -> (Keras' class name, {argument: literal})."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    name = match and _canonical(match[1], OPTIMIZERS)
    if name is None:
        raise ParameterError(f"unknown optimizer {_short(text)}")
    arguments = {}
    for key, value in (split(match[2]) if match[2] and match[2].strip() else {}).items():
        key = "learning_rate" if key == "lr" else key
        if not re.fullmatch(r"[A-Za-z_]\w{0,62}", key):
            raise ParameterError(f"{_short(key)} is no name of an argument of optimizer {name}")
        if key in arguments:
            raise ParameterError(f"optimizer {name} is given both lr and learning_rate")
        if sequences.is_sequence_text(value):
            arguments[key] = _scalar_sequence(key, value)
            continue
        literal = _evaluate(f"optimizer argument {key}", value)
        if not (literal is None or isinstance(literal, bool) or _is_number(literal)):
            raise ParameterError(f"optimizer argument {key} must be a number, True, False or None, not {_short(value)}")
        # Keras refuses lr=1: it wants a float
        arguments[key] = float(literal) if key in SCALARS and _is_integer(literal) else literal
    arguments = {key: value for key, value in arguments.items() if value is not None}
    rate = arguments.get("learning_rate")
    if "decay" in arguments and _is_sequence(rate) and rate.per == "batch":
        raise ParameterError(
            "decay, which changes the learning rate with each mini-batch, cannot be given together "
            "with learning rates that do so themselves: leave one of them out"
        )
    return name, arguments


def without_scalars(compile_params):
    """What of parsed compile parameters decides which compiled model serves them.

    Of the SCALARS it matters only whether they are given, and their sign; of the learning rate, where it is a variable
    of Keras', not even that. Of a sequence per batch, how it is computed, but not its numbers. Of a schedule of Keras,
    all.
    """
    arguments = dict(compile_params["optimizer_args"])
    for key, value in arguments.items():
        if isinstance(value, Schedule):
            arguments[key] = ["schedule", value.text]
        elif isinstance(value, Sequence) and value.per == "batch":
            arguments[key] = ["per batch", *value.structure(), None if key == "learning_rate" else _sign(value.at(0))]
        elif key in SCALARS and (isinstance(value, Sequence) or _is_number(value)):
            variable = key == "learning_rate" and "decay" not in arguments
            arguments[key] = ["scalar", None if variable else _sign(_first(value))]
    return {**compile_params, "optimizer_args": arguments}


def scalars(compile_params):
    """{name: number, or Sequence per batch}: the scalars that the parsed compile parameters give."""
    return {
        k: v
        for k, v in compile_params["optimizer_args"].items()
        if k in SCALARS and (_is_number(v) or isinstance(v, Sequence))
    }


class Resolver:
    """The parameter strings of one configuration in each iteration, with literals in the place of its sequences.

    They are canonical: equal for all that means the same in that iteration, and read by the same parsers. What changes
    with mini-batches stays in them as its description; what has no effect is left out.
    """

    def __init__(self, compile_params, fit_params, classes=None):
        """Parse both strings; raises ParameterError. `classes(weights)` makes of class weights that may name labels, or
        be 'balanced', those of class numbers; not given: they are such."""
        self.compile, self.fit = parse_compile_params(compile_params), parse_fit_params(fit_params)
        self._classes, weights = classes or (lambda weights: weights), self.fit["class_weight"]
        if weights is not None and not isinstance(weights, Sequence):
            self.fit["class_weight"] = self._classes(weights)
        self._scalars = [
            (k, v)
            for k, v in sorted(self.compile["optimizer_args"].items())
            if isinstance(v, Sequence) and v.per == "iteration"
        ]
        self._fits = [(k, self.fit[k]) for k in SEQUENCE_KEYS if isinstance(self.fit[k], Sequence)]
        self._last = self._texts = None  # the values of the last iteration that was asked for, and what they gave
        if not self.varies:
            self._texts = (_compile_text(self.compile), _fit_text(self.fit))

    @property
    def varies(self):
        """False where all iterations have the same parameters."""
        return bool(self._scalars or self._fits)

    def at(self, iteration):
        """(compile_params, fit_params) of iteration 1, 2, ...; raises ParameterError where a value is none that may
        be."""
        if not self._scalars and not self._fits:
            return self._texts
        scalars, fits = self._values(iteration)
        if (scalars, fits) != self._last:
            texts = self._texts or (None, None)
            before = self._last or (None, None)
            self._texts = (
                texts[0] if scalars == before[0] else self._compile(scalars),
                texts[1] if fits == before[1] else _fit_text({**self.fit, **dict(fits)}),
            )
            self._last = scalars, fits
        return self._texts

    def check(self, iterations):
        """Raise ParameterError where one of so many iterations has a value that may not be."""
        for iteration in range(1, iterations + 1) if self.varies else ():
            self._values(iteration)

    def _values(self, iteration):
        step, key = iteration - 1, None
        try:
            for key, sequence in self._scalars:  # noqa: B007
                value = sequence.at(step)
                if key != "learning_rate" and _sign(value) != _sign(sequence.at(0)):
                    raise ParameterError(SIGNS.format(key, value))
            scalars = [(k, s.at(step)) for k, s in self._scalars]
            fits = []
            for key, sequence in self._fits:
                value = _fit_value(key, sequence.at(step))
                fits.append((key, self._classes(value) if key == "class_weight" else value))
            return scalars, fits
        except (sequences.SequenceError, ParameterError) as error:
            raise ParameterError(f"{key}, iteration {iteration}: {error}") from None

    @functools.cached_property
    def _pieces(self):
        """The compile string, cut where the values of the sequences are to stand."""
        mark = "\0"
        return _compile_text(
            {
                **self.compile,
                "optimizer_args": {**self.compile["optimizer_args"], **{k: _Written(mark) for k, _ in self._scalars}},
            }
        ).split(mark)

    def _compile(self, scalars):
        parts = [self._pieces[0]]
        for (_, value), piece in zip(scalars, self._pieces[1:]):
            parts += [repr(value + 0.0), piece]
        return "".join(parts)


def resolve(compile_params, fit_params, iteration):
    """The literal (compile_params, fit_params) of iteration 1, 2, ... of a configuration: see Resolver."""
    return _resolver(compile_params, fit_params).at(iteration)


@functools.lru_cache(1000)
def _resolver(compile_params, fit_params):
    return Resolver(compile_params, fit_params)


def canonical_compile(text):
    """A text that is equal for compile_params that mean the same, however they are spelt. Raises ParameterError."""
    return json.dumps(parse_compile_params(text), sort_keys=True, default=str)


def canonical_fit(text):
    """A text that is equal for fit_params that mean the same, however they are spelt. Raises ParameterError."""
    return json.dumps(parse_fit_params(text), sort_keys=True, default=str)


def split(text):
    """'a = 1, b = [2, 3]' -> {'a': '1', 'b': '[2, 3]'}; a repeated key's last value wins. Raises ParameterError."""
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(f"a parameter string of {len(text)} characters is longer than {MOST_CHARACTERS}")
    values, depth, start, key = {}, 0, 0, None
    for position, character in enumerate(text + ","):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                raise ParameterError(f"unmatched {character!r} in {_short(text)}")
        elif depth == 0 and character == "=" and key is None:
            key, start = text[start:position].strip(), position + 1
        elif character == "," and (depth == 0 or position == len(text)):
            if depth:
                raise ParameterError(f"an open bracket in {_short(text)}")
            value = text[start:position].strip()
            if not key or not value:
                part = text[start:position].strip()
                raise ParameterError(f"{_short(part)} in {_short(text)} is not of the form key = value")
            values[key], start, key = value, position + 1, None
    return values


# --- sequences -----------------------------------------------------------------------------------------
SIGNS = (
    "{0} must not change between zero and other signs while a configuration trains, since Keras then keeps other "
    "variables: {1} is not of the first value's sign"
)


def _is_sequence(value):
    return isinstance(value, (Sequence, Schedule))


def _sign(value):
    return (value > 0) - (value < 0)


def _first(value):
    return value.at(0) if isinstance(value, Sequence) else value


def _parsed_sequence(key, text):
    try:
        return sequences.parse(text)
    except sequences.SequenceError as error:
        raise ParameterError(f"{key}: {error}") from None


def _scalar_sequence(key, text):
    """The Sequence or Schedule of an optimizer's argument, or the number where it has just one."""
    value = _parsed_sequence(key, text)
    if isinstance(value, dict) or isinstance(value, Sequence) and any(isinstance(v, dict) for v in value.stated()):
        raise ParameterError(f"optimizer argument {key} must be numbers, not {_short(text)}")
    if key not in SCALARS or key == "decay":
        raise ParameterError(
            f"optimizer argument {key} cannot be a sequence, only "
            f"{', '.join(name for name in SCALARS if name != 'decay')} can"
        )
    if isinstance(value, Schedule) and key != "learning_rate":
        raise ParameterError(f"a learning rate schedule of Keras cannot stand for {key}")
    if isinstance(value, Sequence) and key != "learning_rate" and len(value.signs()) > 1:
        first = value.at(0)
        raise ParameterError(SIGNS.format(key, next(v for v in value.stated() if _sign(v) != _sign(first))))
    return value


def _fit_sequence(key, text):
    """The Sequence of a fit parameter, every value that its text names checked; or its value where it has just one."""
    if key not in SEQUENCE_KEYS:
        raise ParameterError(f"{_short(key)} cannot be a sequence, only {', '.join(SEQUENCE_KEYS)} can")
    value = _parsed_sequence(key, text)
    if isinstance(value, Schedule):
        raise ParameterError(f"a learning rate schedule of Keras cannot stand for {key}")
    if isinstance(value, Sequence) and value.per == "batch":
        raise ParameterError(
            f"{key} cannot change within an iteration: per='batch' is for the scalars of an "
            f"optimizer ({', '.join(name for name in SCALARS if name != 'decay')})"
        )
    if not isinstance(value, Sequence):
        return _stated(key, value)
    checked = [_stated(key, v) for v in value.stated()]
    if key == "dropout" and isinstance(checked[0], dict) and any(v.keys() != checked[0].keys() for v in checked):
        raise ParameterError("the dictionaries of dropout must all name the same layers")
    return value.mapped(FIT_CHECKS[key]) if isinstance(checked[0], dict) else value


def _stated(key, value):
    """A value that a sequence names, checked: of a batch size, rounded."""
    if key == "batch_size" and isinstance(value, float):
        if not value >= 1:
            raise ParameterError(f"batch_size must be at least 1, not {value:g}")
        value = _rounded(value)
    return FIT_CHECKS[key](value)


def _fit_value(key, value):
    """What a fit parameter is where its sequence has this value: a batch size is a whole number, and at least 1."""
    return FIT_CHECKS[key](max(1, _rounded(value)) if key == "batch_size" else value)


def _rounded(value):
    return math.floor(value + 0.5)


def _checked_batch_size(value):
    _whole("batch_size", value, 1)
    return value


def _checked_class_weight(weights):
    """{class: weight}, by class: a number from 0, or a label. Weights are floats, so that 1 and 1.0 are the same.

    Or 'balanced': :class:`Resolver` puts the weights in its place.
    """
    if weights == "balanced":
        return weights
    if not (
        isinstance(weights, dict)
        and all((isinstance(k, (str, bool)) or _is_integer(k) and k >= 0) and _is_number(v) for k, v in weights.items())
    ):
        raise ParameterError(
            f"class_weight must be a dictionary of class numbers or labels to weights, or 'balanced', "
            f"not {_short(weights)}"
        )
    if negative := [k for k, v in weights.items() if v < 0]:
        raise ParameterError(
            f"class_weight must not be below 0, as that of class {negative[0]!r} is in {_short(weights)}"
        )
    return {k: float(v) + 0.0 for k, v in sorted(weights.items(), key=lambda item: (str(type(item[0])), item[0]))}


def _checked_dropout(rates):
    """A rate, or {layer: rate} by name."""
    if isinstance(rates, dict):
        if not rates or not all(isinstance(k, str) and _is_rate(v) for k, v in rates.items()):
            raise ParameterError(f"dropout must name layers with rates from 0 to below 1, not {_short(rates)}")
        return {k: float(v) + 0.0 for k, v in sorted(rates.items())}
    if not _is_rate(rates):
        raise ParameterError(
            f"dropout must be a rate from 0 to below 1, or a dictionary of layers to rates, not {_short(rates)}"
        )
    return float(rates) + 0.0


def _is_rate(value):
    return _is_number(value) and 0 <= value < 1


FIT_CHECKS = {"batch_size": _checked_batch_size, "class_weight": _checked_class_weight, "dropout": _checked_dropout}


# --- writing -------------------------------------------------------------------------------------------
class _Written(str):
    """A text that stands for itself."""


def _compile_text(parsed):
    """The canonical string of parsed compile parameters."""
    optimizer = ",".join(f"{k}={_write(v)}" for k, v in sorted(parsed["optimizer_args"].items()))
    parts = [f"loss={parsed['loss']!r}", f"optimizer='{parsed['optimizer']}({optimizer})'"]
    weights = parsed["loss_weights"]
    if weights:
        weights = {k: float(v) for k, v in weights.items()} if isinstance(weights, dict) else list(map(float, weights))
    others = {
        "metrics": parsed["metrics"] or None,
        "loss_weights": weights,
        "weighted_metrics": parsed["weighted_metrics"],
        "sample_weight_mode": parsed["sample_weight_mode"],
    }
    return ",".join(parts + [f"{k}={_write(v)}" for k, v in others.items() if v is not None])


def _fit_text(parsed):
    """The canonical string of parsed fit parameters: what is given by default, or has no effect, is left out."""
    parts = []
    for key, value in sorted(parsed.items()):
        if key == "callbacks" and value:
            parts.append(f"callbacks=[TensorBoard({','.join(f'{k}={_write(v)}' for k, v in sorted(value.items()))})]")
        elif key not in WITHOUT_EFFECT and (value != DEFAULTS[key] or type(value) is not type(DEFAULTS[key])):
            parts.append(f"{key}={_write(value)}")
    return ",".join(parts)


def _write(value):
    """A literal, in which no bracket or quote stands within a text, since those would count in `split`."""
    if isinstance(value, _Written):
        return str(value)
    if isinstance(value, str):
        return "'" + re.sub(r"[^\w ./:%+*-]", _escaped, value) + "'"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_write(k)}:{_write(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_write, value)) + "]"
    return repr(value + 0.0 if isinstance(value, float) else value)


def _escaped(match):
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _canonical(name, known):
    if name in known:
        return name
    by_lower = {k.lower(): k for k in sorted(known, reverse=True)}
    return by_lower.get(name.lower()) if isinstance(name, str) else None


def _strip_quotes(text):
    return text.strip("'\"").strip()


def _evaluate(key, text):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on odd spelling
            value = ast.literal_eval(text)
        if not _is_plain(value):
            raise ValueError
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, IndexError, ArithmeticError):
        raise ParameterError(f"{_short(key)} must be a literal, not {_short(text)}") from None
    return value


def _is_plain(value):
    """True for None, booleans, texts, finite numbers of 64 bits, and lists, tuples and dictionaries of these."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def _short(value):
    """`value` as an error message shows it."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _literal(key, text, kinds):
    """A literal of one of `kinds` or None."""
    if text is None:
        return None
    value = _evaluate(key, text)
    if value is not None and not isinstance(value, kinds):
        raise ParameterError(f"{key} must be a {' or '.join(k.__name__ for k in kinds)} or None, not {_short(text)}")
    return value


def _metrics(text):
    """A list of names, or one name alone."""
    if text is not None and re.fullmatch(r"(?!None$)[A-Za-z]\w*", text):
        return [metric_name(text)]
    metrics = _literal("metrics", text, (list, tuple, str)) if text is not None else None
    if isinstance(metrics, str):  # as in metrics=('accuracy')
        metrics = [metrics]
    return list(dict.fromkeys(metric_name(name) for name in metrics or ()))


def _weighted_metrics(text):
    # Keras would load a dictionary here as an object of any class, so only names pass
    names = _literal("weighted_metrics", text, (list, tuple))
    if names is None:
        return None
    for name in names:
        metric_name(name)
        if not is_builtin_metric(name):
            raise ParameterError(f"weighted metric {_short(name)} is none of Keras' own")
    return [metric_name(name) for name in names]


def metric_name(name):
    """Keras' spelling of a metric's name, or `name` itself where it is not Keras'."""
    if not isinstance(name, str):
        raise ParameterError(f"metric {_short(name)} is not a name")
    if name.lower() in [r.lower() for r in REFUSED_METRICS]:
        raise ParameterError(
            f"metric {name!r} is not supported: labels are packed one-hot, for which it is {_dense(name)!r}"
        )
    return OLD_METRICS.get(name.lower()) or _canonical(name, METRICS) or name


def _loss_weights(text):
    weights = _literal("loss_weights", text, (list, dict))
    values = weights.values() if isinstance(weights, dict) else weights or ()
    if not all(map(_is_number, values)) or isinstance(weights, dict) and not all(isinstance(k, str) for k in weights):
        raise ParameterError(
            f"loss_weights must be a list of numbers, or a dictionary of output names to numbers, not {_short(text)}"
        )
    return weights


def _tensorboard(text):
    match = re.fullmatch(r"\[\s*TensorBoard\s*\((.*)\)\s*\]", _strip_quotes(text), re.DOTALL)
    if not match:
        raise ParameterError(f"callbacks must be one TensorBoard(...) in a list, not {_short(text)}")
    arguments = {k: _evaluate(k, v) for k, v in (split(match[1]) if match[1].strip() else {}).items()}
    for key in arguments:
        if key not in TENSORBOARD_KEYS:
            raise ParameterError(f"{_short(key)} is not accepted in TensorBoard ({', '.join(TENSORBOARD_KEYS)})")
    if not isinstance(arguments.get("log_dir"), str):
        raise ParameterError("TensorBoard needs log_dir, a string")
    return arguments


def _whole(key, value, low):
    if not _is_integer(value) or not low <= value < 2**31:
        raise ParameterError(f"{key} must be an integer of at least {low}, not {_short(value)}")


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value):
    return _is_integer(value) and abs(value) < 2**63 or isinstance(value, float) and math.isfinite(value)
