"""Architecture JSON and compile parameters to a compiled Keras model, and its state. Runs in the trainer."""

import collections
import functools
import hashlib
import itertools
import json
import math
import os
import random
import time

import keras
import numpy as np

from mop_udf import architecture as architectures
from mop_udf import compile_cache, params, prefixes, sizes, state
from mop_udf import objects as custom
from mop_udf.errors import first_line
from mop_udf.kernels.choice import AGAIN, Learned
from mop_udf.kernels.chosen import Chosen
from mop_udf.kernels.forward import Forward
from mop_udf.kernels.framework import own as framework
from mop_udf.kernels.prefix import split
from mop_udf.kernels.scores import Scores
from mop_udf.sequences import Schedule, Sequence

# what a compiled step or loop holds, about, and for each layer; by XLA so many times as much (measured on dense nets)
COMPILED_BYTES, LAYER_BYTES, XLA_TIMES = 3 << 19, 700_000, 6
CACHE_SHARE = 0.25  # of a trainer's share of the memory: for compiled models
STALE = 4  # a model that was not asked for while all were, so many times, is not asked for any more
MOST_LEARNED = 1000
KEPT_BYTES = 64 << 20  # initial weights of at most this size are kept for the next configuration


class ConfigurationError(Exception):
    """The configuration cannot be trained: the architecture, a parameter, or what comes of them is at fault."""


def initial_seed(seed, model_id, mst_key=None):
    """The Keras seed of the initial weights, from the run's seed (32 bits).

    It depends on (seed, model_id) only, so that configurations of one architecture start equal; with `mst_key`, each
    starts for itself.
    """
    parts = [seed, model_id] if mst_key is None else [seed, model_id, mst_key]
    return int(np.random.SeedSequence([n & 0xFFFFFFFF for n in parts]).generate_state(1)[0])


def build(architecture, seed):
    """A new Keras model from a normalised architecture (dict), its weights and random state drawn from `seed`. It
    takes and gives lists where the architecture has dictionaries.

    Raises ConfigurationError, before anything is allocated where it is for the size.
    """
    check_size(architecture)
    keras.utils.set_random_seed(seed)
    try:
        model = keras.models.model_from_json(json.dumps(architectures.by_place(architecture)))
    except Exception as error:
        raise ConfigurationError(f"Keras refuses the architecture: {first_line(error)}") from error
    if not model.built:
        raise ConfigurationError("the architecture does not say its input shape")
    framework.draw_from_state(model)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            _normalise_by_variables(layer)
    return model


def _normalise_by_variables(layer):
    """Let an adapted Normalization compute with the values that its variables have now.

    Keras derives the mean and variance from the variables once, when a file is loaded, and holds them as constants.
    Here variables change under compiled functions, so every call derives them.
    """
    call = layer.call

    def current(inputs):
        constants = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return call(inputs)
        finally:  # a tensor of a graph must not outlive it
            layer.mean, layer.variance = constants

    layer.call = current


def output_shapes(model):
    """Shapes of a model's outputs without the batch dimension, as lists; None for what is not known."""
    return [list(output.shape[1:]) for output in model.outputs]


def check_outputs(model, wanted):
    """Raises ConfigurationError where a model does not output what the rows have (architecture.output_misfit)."""
    shapes, count = output_shapes(model), len(wanted["widths"])
    if len(shapes) != count:
        raise ConfigurationError(f"the architecture has {len(shapes)} outputs, not {count}")
    for shape in shapes:
        if not architectures.is_vector(shape):
            raise ConfigurationError(f"{architectures.NO_VECTOR} {shape}")
    if problem := architectures.output_misfit([shape[0] for shape in shapes], wanted):
        raise ConfigurationError(problem)


def check_size(architecture, make_optimizer=None):
    """Raises ConfigurationError where the model would be too large, or nobody knows how large; `make_optimizer` gives a
    new optimizer of it."""
    try:
        sizes.check(architecture, make_optimizer)
    except sizes.TooLarge as error:
        raise ConfigurationError(str(error)) from error
    except sizes.Unsized as error:
        raise ConfigurationError(f"Keras refuses the architecture: {first_line(error.__cause__)}") from error


def normalise(text, dropout=None):
    """Architecture JSON text -> the checked dict that Keras may see; raises ConfigurationError.

    `dropout`: see architecture.with_dropout.
    """
    try:
        made = architectures.check(text)
        return made if dropout is None else architectures.with_dropout(made, dropout)
    except architectures.ArchitectureError as error:
        raise ConfigurationError(str(error)) from error


def set_rates(model, dropout):
    """Give the dropout layers of a new model the rates 0 of `dropout`, for which the architecture has NO_RATE.

    So the model has the same random state whatever the rates, and one state serves them all.
    """
    for layer in model._flatten_layers() if dropout is not None else ():
        rate = dropout.get(layer.name) if isinstance(dropout, dict) else dropout
        if type(layer).__name__ in architectures.DROPOUTS and rate == 0:
            layer.rate = 0.0


def weights_by_place(loss_weights, architecture):
    """The weights of the losses as a list where they and the outputs of an architecture are dictionaries. Raises
    ConfigurationError where they have other names."""
    names = architectures.named(architecture, "output_layers")
    if names is None or not isinstance(loss_weights, dict):
        return loss_weights
    if unknown := sorted(set(map(str, loss_weights)) - set(names)):
        raise ConfigurationError(
            f"loss_weights names {unknown[0]!r}, the architecture's outputs are {', '.join(names)}"
        )
    return [loss_weights.get(name, 1.0) for name in names]


def make_optimizer(name, arguments):
    """A Keras optimizer from parsed compile parameters.

    `decay` is the time-based decay of Keras 2: the rate at update t is learning_rate / (1 + decay * t). A sequence per
    batch is its first value here, unless it is the learning rate's.
    """
    arguments = {
        key: value.at(0) if isinstance(value, Sequence) and key != "learning_rate" else value
        for key, value in dict(arguments).items()
    }
    # (left to Keras it depends on how many there have been, and XLA's cache finds nothing by another)
    arguments.setdefault("name", "optimizer")
    decay, rate = arguments.pop("decay", None), arguments.get("learning_rate")
    try:
        if isinstance(rate, Sequence):
            arguments["learning_rate"] = framework.Rate(rate)
        elif isinstance(rate, Schedule):
            arguments["learning_rate"] = _schedule(rate)
        optimizer_class = getattr(keras.optimizers, name)
        if decay:
            if rate is None:
                rate = float(optimizer_class().learning_rate)
            arguments["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        return optimizer_class(**arguments)
    except Exception as error:
        raise ConfigurationError(f"Keras refuses the optimizer {name}: {first_line(error)}") from error


def _schedule(described):
    """The Keras object that a description (sequences.Schedule) is of; raises what Keras does."""
    kind = getattr(keras.optimizers.schedules, described.name)
    return kind(**{key: list(value) if isinstance(value, tuple) else value for key, value in described.config.items()})


class Kept:
    """A scalar that Keras itself keeps in a variable, whose own `assign` takes ten times as long."""

    def __init__(self, variable):
        self._variables, self._dtype = framework.Variables([variable]), state.dtype(variable.dtype)

    def assign(self, value):
        self._variables.put([np.asarray(value, self._dtype)])


def make_scalars_variable(optimizer, scalars):
    """Make the `scalars` (as params.scalars gives them) of a new optimizer variable: {name: what to assign to}."""
    made, schedule = {}, optimizer._learning_rate
    if isinstance(schedule, framework.Rate):
        made["learning_rate"] = schedule
    elif "decay" in scalars and isinstance(schedule, keras.optimizers.schedules.InverseTimeDecay):
        made["learning_rate"] = framework.varied(schedule, "initial_learning_rate")
        made["decay"] = framework.varied(schedule, "decay_rate")
    elif isinstance(schedule, keras.Variable):
        made["learning_rate"] = Kept(schedule)
    for name, scalar in scalars.items():
        if name not in made and isinstance(getattr(optimizer, name, None), (int, float)):
            made[name] = framework.varied(optimizer, name, scalar if isinstance(scalar, Sequence) else None)
    return made


class CompiledModel:
    """A model with its optimizer, compiled once and lent to every configuration that differs in scalars only."""

    def __init__(self, architecture, compile_params, objects, learned, name, seed=None, watched=False, dropout=None):
        """`objects`: {name: pickle} of the custom functions that the compile parameters name; `learned(architecture,
        part)`: what is Learned of it; `name`: see Chosen; `seed`: that of the initial weights where it will be started
        next; `watched`: metrics are computed in training, too; `dropout`: the rate of the dropout layers,
        {layer: rate}, or None for the architecture's own."""
        self.architecture = normalise(architecture, dropout)
        compile_params = {
            **compile_params,
            "loss_weights": weights_by_place(compile_params["loss_weights"], self.architecture),
        }
        functions = load_functions(objects)
        optimizer = functools.partial(make_optimizer, compile_params["optimizer"], compile_params["optimizer_args"])
        check_size(self.architecture, optimizer)
        self.model = build(self.architecture, seed or 0)
        set_rates(self.model, dropout)
        self._keeps_first = self.model.count_params() * 4 < KEPT_BYTES
        # the last seed and the state that it gave
        self._first = (seed, initial_state(self.model)) if seed is not None and self._keeps_first else (None, None)
        self.optimizer = optimizer()
        self.scalars = make_scalars_variable(self.optimizer, params.scalars(compile_params))
        self._compile_params, self._functions, self._watched = compile_params, functions, watched
        try:
            self._compile(self.model, self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
            self._metrics = make_metrics(compile_params["metrics"], functions, self.model)
        except Exception as error:
            raise ConfigurationError(f"Keras refuses to compile the model: {first_line(error)}") from error
        self._learned, self._name = functools.partial(learned, architecture), name
        self._lasting = not functions  # these may do otherwise another time, and nothing names that
        self._scored = _key(architecture, compile_params, objects)
        self.kernels, self.forward = self._kernels(self.model), self._forward(self.model)
        self._metric = next(iter(compile_params["metrics"]), None)
        self._groups = {
            "weights": self.model.weights,
            "seeds": seed_variables(self.model),
            "optimizer": self.optimizer.variables,
        }
        self._averages = self._moving_averages()
        self._shapes = {name: [tuple(v.shape) for v in group] for name, group in self._groups.items()}
        self._variables = framework.Variables(v for group in self._groups.values() for v in group)
        self.weights = framework.Variables(self.model.weights)
        self._fresh_optimizer = state.values(self.optimizer.variables)
        self._variable_bytes = 2 * sum(
            state.dtype(v.dtype).itemsize * math.prod(v.shape)
            for v in (*self.model.variables, *self.optimizer.variables)
        )
        self._compiled_bytes = COMPILED_BYTES + LAYER_BYTES * len(list(self.model._flatten_layers()))

    def _compile(self, model, optimizer):
        compile_params, functions = self._compile_params, self._functions
        model.compile(
            optimizer=optimizer,
            loss=make_loss(compile_params["loss"], functions, len(model.outputs)),
            metrics=[[metric for _, metric in own] for own in make_metrics(compile_params["metrics"], functions, model)]
            if self._watched
            else None,
            loss_weights=compile_params["loss_weights"],
            jit_compile=False,
        )

    def _kernels(self, model, part="", layers=None):
        return Chosen(
            model,
            bool(seed_variables(self.model)),
            self._learned(part),
            self._name + part,
            layers,
            part.strip() or "model",
            self._lasting,
        )

    def _forward(self, model, part="", layers=None):
        return Forward(
            model,
            Scores(model, self._compile_params["loss"], self._compile_params["loss_weights"], self._metrics),
            layers,
            self._scored + part if self._lasting else None,
        )

    @functools.cached_property
    def cut(self):
        """The model cut after its frozen prefix (prefixes.Cut); None where it has none."""
        parts = split(self.model)
        if parts is None:
            return None
        head, layers = parts.head, parts.head.own_layers
        self._compile(head, self.model.optimizer)
        return prefixes.Cut(parts, self._kernels(head, " head", layers), self._forward(head, " head", layers))

    @property
    def nbytes(self):
        """Memory that the model holds, about: variables with the copies of their first values, and what is compiled."""
        cut = self.__dict__.get("cut")  # where it has been asked for
        all_kernels = [self.kernels, *([cut.kernels] if cut else [])]
        compiled = sum(kernels.compilations + (XLA_TIMES - 1) * kernels.by_xla for kernels in all_kernels)
        return self._variable_bytes + compiled * self._compiled_bytes

    def score(self, sums):
        """{"loss", "metric" (the first, or None), "metrics" ({name: value}), "rows"} from an Evaluation's sums, or from
        those of several, added up."""
        loss, metrics = self.forward.scores.results(np.asarray(sums[1:]), sums[0])
        return {"loss": loss, "metric": metrics.get(self._metric), "metrics": metrics, "rows": int(sums[0])}

    def set_scalars(self, compile_params):
        """Make the model that of parsed compile parameters, which differ from its own in scalars only."""
        for name, value in params.scalars(compile_params).items():
            if name in self.scalars:
                self.scalars[name].assign(value)

    def start(self, seed):
        """Put the model into the state in which training begins: weights from `seed`, an unused optimizer."""
        drawn_from, first = self._first
        if drawn_from != seed:
            first = initial_state(build(self.architecture, seed))
            self._first = (seed, first) if self._keeps_first else (None, None)
        self._assign({**first, "optimizer": self._fresh_optimizer})

    def load(self, data):
        """Put the model into the state `data` (bytes of `save`)."""
        self._assign(state.unpack(data))

    def average(self, states):
        """Put the average of replicas' weights in place of the model's. `states`: [(bytes of `save`, rows), ...]."""
        self.weights.put(self.weights_of(states[0][0], False, states, state.weights))

    def set_weights(self, data):
        """Put the model's weights (float32 bytes, docs/contract/serialization.md) in place; raises ConfigurationError where they differ."""
        self.model.set_weights(self.weights_of(data, True))

    def weights_of(self, data, plain, replicas=None, read=state.output_weights):
        """The weights in a model state (bytes of `save`) or, where it is `plain`, in float32 bytes: a list of arrays.

        `replicas`: [(bytes of `save`, rows), ...], of which the average counts; `read` gives those of a state: the
        ones that users get, or (state.weights) the ones with which training goes on. Raises ConfigurationError.
        """
        shapes = [w.shape for w in self.model.weights]
        if plain:
            try:
                return state.weights_from_bytes(data, shapes)
            except state.StateError as error:
                raise ConfigurationError(str(error)) from error
        weights = read(data)
        if replicas:
            weights = state.average((read(own) for own, _ in replicas), [n for _, n in replicas])
        if [tuple(a.shape) for a in weights] != [tuple(s) for s in shapes]:
            raise ConfigurationError("the model state does not fit the architecture (weights)")
        return weights

    def save(self):
        """The model's state as a list of buffers."""
        arrays = iter(self._variables.take())
        return state.pack(
            {name: list(itertools.islice(arrays, len(group))) for name, group in self._groups.items()}, self._averages
        )

    def _moving_averages(self):
        """The moving averages that the optimizer keeps (`use_ema`), as state.pack takes their places."""
        optimizer = self.model.optimizer
        if not optimizer.use_ema:
            return []
        weights = {id(v): place for place, v in enumerate(self._groups["weights"])}
        places = {id(v): place for place, v in enumerate(self._groups["optimizer"])}
        return [
            (weights[id(v)], places[id(own)])
            for v, own in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average)
            if own is not None
        ]

    def _assign(self, groups):
        for name, shapes in self._shapes.items():
            if [array.shape for array in groups[name]] != shapes:
                raise ConfigurationError(f"the model state does not fit the architecture ({name})")
        self._variables.put([array for name in self._groups for array in groups[name]])


class Evaluation:
    """The sums of one model over rows that come in pieces; the models may take turns at each piece."""

    def __init__(self, compiled, weights, inputs, features=None):
        """`weights`: arrays in the order of the model's weights; the first `inputs` columns of a piece are inputs;
        `features`: prefixes.Features of the only piece, or None."""
        self.compiled, self.weights, self.inputs, self.features = compiled, weights, inputs, features
        self.sums, self.seconds = 0.0, 0.0  # the number of rows, then what its Scores add up

    def add(self, piece):
        """Evaluate on a piece: a tuple of arrays."""
        began = time.monotonic()
        self.compiled.weights.put(self.weights)
        forward, inputs = self.compiled.forward, self.inputs
        if self.features and (segment := self.features.segment(forward.size.rows)):
            forward, piece, inputs = self.compiled.cut.forward, segment.columns, 1
        self.sums = self.sums + np.append(len(piece[0]), forward.evaluate(piece, inputs))
        self.seconds += time.monotonic() - began

    def report(self):
        """What :meth:`CompiledModel.score` gives of all pieces, with "sums", "kernel" and "seconds"."""
        if np.isscalar(self.sums):
            return {"rows": 0, "seconds": self.seconds}
        return {
            **self.compiled.score(self.sums),
            "sums": self.sums.tolist(),
            "kernel": "plain",
            "seconds": self.seconds,
        }


def _cost_history(architecture):
    """What is Learned of an architecture at first: what trainers have compiled of it, which is kept for later ones."""
    cache = compile_cache.own()
    if cache is None:
        return Learned()
    compiled = {
        name: last if often > 1 else AGAIN * last for name, (last, often) in cache.compiled(architecture).items()
    }
    return Learned(
        note=functools.partial(cache.note, architecture),
        lasts=True,
        again=lambda name: compiled.get(compile_cache.digest(name)),
    )


class ModelCache:
    """The compiled models of a trainer, as many as the memory for them holds.

    The optimizers' scalars (params.SCALARS) are not part of the key, since they are variables: configurations that
    differ in them share a compiled model, and so do different batch sizes.

    A run asks for its models in turn, again and again: where they do not all fit, the one that was not used for the
    longest time is the very one that is needed next. So any goes, by chance, but first those that no run asks for any
    more.
    """

    def __init__(self, most_bytes=1 << 30):
        """`most_bytes`: of all models together; the one in use stays, however large."""
        self.most_bytes, self.models, self.learned = most_bytes, collections.OrderedDict(), collections.OrderedDict()
        self.used, self.asked, self.random = {}, 0, random.Random(0)  # key -> when (in `get`s) it was asked for last
        self.evaluators = {}  # what an evaluation depends on -> key of the model that does it
        self.sizes, self.last = {}, None  # key -> bytes when it was used last; the key of the one in use
        self.judged = collections.deque(maxlen=1000)  # optimizers that Keras has accepted

    def get(self, architecture, compile_params, objects, seed=None, watched=False, dropout=None):
        """The CompiledModel for architecture JSON text and parsed parameters, its scalars not set.

        `objects`: {name: pickle} of the custom functions; `seed`: that with which it will be started next, if it will;
        `watched`, `dropout`: see CompiledModel.
        """
        key = self.key(architecture, compile_params, objects, watched, dropout)
        optimizer = (compile_params["optimizer"], sorted(compile_params["optimizer_args"].items()))
        if key not in self.models:  # (it makes such an optimizer)
            self.models[key] = CompiledModel(
                architecture, compile_params, objects, self._learned, key, seed, watched, dropout
            )
        elif optimizer not in self.judged:
            make_optimizer(*optimizer)
        if optimizer not in self.judged:
            self.judged.append(optimizer)
        self.evaluators.setdefault(_key(architecture, compile_params, objects), key)
        return self._use(key)

    @staticmethod
    def key(architecture, compile_params, objects, watched=False, dropout=None):
        """Equal for what one CompiledModel trains. Arguments as of `get`."""
        return json.dumps(
            [architecture, params.without_scalars(compile_params), _digests(objects), watched, dropout],
            sort_keys=True,
            default=str,
        )

    def evaluator(self, architecture, compile_params, objects):
        """A CompiledModel to evaluate with: one that differs in what an evaluation has no use for (the optimizer, rates
        of dropout) will do, so that the evaluation is compiled once for all of them. Arguments as of `get`."""
        key = self.evaluators.get(_key(architecture, compile_params, objects))
        return self._use(key) if key in self.models else self.get(architecture, compile_params, objects)

    def _use(self, key):
        self.models.move_to_end(key)
        self.asked += 1
        self.used[key] = self.asked
        for recent in {self.last, key} & self.models.keys():  # they may have been compiled since
            self.sizes[recent] = self.models[recent].nbytes
        self.last = key
        self._make_room()
        return self.models[key]

    def _learned(self, architecture, part):
        """What is Learned of an architecture, or a part of it."""
        text = architecture + part
        if text not in self.learned:
            self.learned[text] = _cost_history(text)
        self.learned.move_to_end(text)
        if len(self.learned) > MOST_LEARNED:
            self.learned.popitem(last=False)
        return self.learned[text]

    def _make_room(self):
        """Forget models until the others, of which the last is in use, fit the memory for them."""
        total = sum(self.sizes.values())
        while total > self.most_bytes and len(self.models) > 1:
            oldest, *others = list(self.models)[:-1]
            stale = self.asked - self.used[oldest] > STALE * len(self.models)
            victim = oldest if stale else self.random.choice([oldest, *others])
            total -= self.sizes.pop(victim)
            del self.models[victim], self.used[victim]
            self.evaluators = {of: key for of, key in self.evaluators.items() if key != victim}


def _digests(objects):
    return [[name, hashlib.sha256(data).hexdigest()] for name, data in sorted(objects.items())]


def _key(architecture, compile_params, objects):
    """Names what an evaluation depends on, but for weights and rows."""
    wanted = {name: value for name, value in compile_params.items() if not name.startswith("optimizer")}
    return json.dumps([architecture, wanted, _digests(objects)], sort_keys=True, default=str)


def cache_bytes(memory_mb, threads):
    """Memory for the compiled models of a trainer that may use so many MB (0: no limit) and has so many threads."""
    if memory_mb:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return int(CACHE_SHARE * max(0, (memory_mb << 20) - held))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    trainers = max(1, len(os.sched_getaffinity(0)) // threads)  # that share the cores, and so the memory
    return int(CACHE_SHARE * memory / trainers)


def load_functions(objects):
    """{name: pickle} -> {name: function}; raises ConfigurationError where one does not load."""
    functions = {}
    for name, data in objects.items():
        try:
            functions[name] = custom.load(data)
        except ValueError as error:
            raise ConfigurationError(f"custom function {name!r} cannot be used: {first_line(error)}") from error
    return functions


def make_loss(name, functions, outputs):
    """What `compile` takes as loss of a model with that many outputs: each has Keras' loss, or custom one, `name`."""
    loss = name
    if name in functions:
        function = functions[name]

        def loss(y_true, y_pred):
            # a loss that does not depend on the prediction (MADlib's tests have one) has gradients: zeros
            value = function(keras.ops.cast(y_true, y_pred.dtype), y_pred)
            return keras.ops.cast(value, y_pred.dtype) + 0 * keras.ops.sum(y_pred)

    return loss if outputs == 1 else [loss] * outputs


def make_metrics(names, functions, model):
    """For each output of `model` a list of (name, Keras Metric); what they add up is in float64.

    (weighted_metrics are not passed on: there are no sample weights when metrics are computed.)
    """
    return [[(name, _metric(name, functions, output.shape[-1])) for name in names] for output in model.outputs]


def _metric(name, functions, width):
    """The metric `name` of an output of that width. `accuracy` and `crossentropy` depend on it, as in Keras."""
    metrics = keras.metrics
    if name in functions:
        return _wide(metrics.MeanMetricWrapper, _for_each_row(functions[name]), name=f"custom_{name}")
    if name.lower() in ("accuracy", "acc"):
        return _wide(metrics.BinaryAccuracy if width == 1 else metrics.CategoricalAccuracy, name=name)
    if name.lower() in ("crossentropy", "ce"):
        return _wide(metrics.BinaryCrossentropy if width == 1 else metrics.CategoricalCrossentropy, name=name)
    found = metrics.get(name)
    return (
        _wide(type(found)) if isinstance(found, metrics.Metric) else _wide(metrics.MeanMetricWrapper, found, name=name)
    )


def _wide(kind, *args, **kwargs):
    """A metric of Keras whose variables are float64: sums of many rows in float32 would lose the small ones."""

    def add_variable(self, *args, dtype=None, **kwargs):
        return kind.add_variable(self, *args, dtype="float64", **kwargs)

    return type(kind.__name__, (kind,), {"add_variable": add_variable})(*args, dtype="float64", **kwargs)


def _for_each_row(function):
    """A custom metric, whose value for a whole batch is that of each of its rows: so it is a mean over rows."""

    def metric(y_true, y_pred):
        value = keras.ops.convert_to_tensor(function(keras.ops.cast(y_true, y_pred.dtype), y_pred))
        return keras.ops.broadcast_to(value, keras.ops.shape(y_pred)[:1]) if len(value.shape) == 0 else value

    return metric


def initial_state(model):
    """The weights and random states of a new model, as `_assign` takes them."""
    return {"weights": state.values(model.weights), "seeds": state.values(seed_variables(model))}


def seed_variables(model):
    """The variables of `model` that hold the state of random generators, in order."""
    weights = {id(w) for w in model.weights}
    return [v for v in model.variables if id(v) not in weights]


def parse(compile_text, fit_text, iteration=1):
    """Parameter strings -> parsed dicts of one iteration, literals for sequences; raises ConfigurationError."""
    try:
        return _parsed(*params.resolve(compile_text, fit_text, iteration))
    except params.ParameterError as error:
        raise ConfigurationError(str(error)) from error


@functools.lru_cache(1000)
def _parsed(compile_text, fit_text):
    return params.parse_compile_params(compile_text), params.parse_fit_params(fit_text)
