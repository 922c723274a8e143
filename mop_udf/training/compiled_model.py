"""A compiled Keras model and its state. Runs in the trainer."""

import functools
import hashlib
import itertools
import json
import math
from typing import Any

import numpy as np

from mop_udf import state
from mop_udf.architecture.architecture import custom_classes, custom_model
from mop_udf.errors import first_line
from mop_udf.kernels.forward import Forward
from mop_udf.kernels.framework import framework
from mop_udf.kernels.prefix import split
from mop_udf.kernels.scores import Scores
from mop_udf.kernels.tuned_kernels import TunedKernels
from mop_udf.params import params
from mop_udf.training import custom_layers, custom_models, prefixes
from mop_udf.training.inherited_weights import inherited
from mop_udf.training.losses import by_position, load_functions, make_loss, make_metrics
from mop_udf.training.models import (
    ConfigurationError,
    build,
    check_size,
    initial_state,
    normalise,
    seed_variables,
    set_zero_rates,
)
from mop_udf.training.optimizers import make_optimizer, make_scalar_variables

# estimated size of a compiled step or loop, of each layer in it, and the factor for XLA (measured on dense nets)
COMPILED_BYTES, LAYER_BYTES, XLA_TIMES = 3 << 19, 700_000, 6
KEPT_BYTES = 64 << 20  # initial weights up to this size are kept for the next configuration


class CompiledModel:
    """A model with its optimizer, compiled once and shared by all configurations that differ in scalars only."""

    def __init__(
        self,
        architecture: str,
        compile_params: dict[str, Any],
        objects: Any,
        memory_of: Any,
        name: str,
        seed: Any = None,
        watched: bool = False,
        dropout: Any = None,
    ) -> None:
        """Build and compile the model.

        `objects`: {name: pickle} of custom functions, layers and models; `memory_of(architecture, part)`: the AutotunerMemory
        of a part of it; `name`: see TunedKernels; `seed`: the seed of the initial weights, if training starts next; `watched`:
        training computes metrics, too; `dropout`: one rate for the dropout layers, {layer: rate}, or None for the
        architecture's rates. Raises ConfigurationError.
        """
        functions = load_functions(objects)
        self._custom = custom_layers.register(objects, functions)
        self.architecture = normalise(architecture, dropout, self._custom)
        self._own_class = custom_model(self.architecture)
        if self._own_class is not None:
            custom_models.check_constructor(functions[self._own_class], self._own_class, self.architecture)
        optimizer = functools.partial(make_optimizer, compile_params["optimizer"], compile_params["optimizer_args"])
        check_size(self.architecture, optimizer)
        self.model = build(self.architecture, seed or 0)
        compile_params = {
            **compile_params,
            "loss": by_position("loss", compile_params["loss"], self.architecture, self.model),
            "loss_weights": by_position(
                "loss_weights", compile_params["loss_weights"], self.architecture, self.model, 1.0
            ),
        }
        set_zero_rates(self.model, dropout)
        self._keeps_first = self.model.count_params() * 4 < KEPT_BYTES
        # the last seed, and the state drawn from it
        self._first = (seed, initial_state(self.model)) if seed is not None and self._keeps_first else (None, None)
        self.optimizer = optimizer()
        self.scalars = make_scalar_variables(self.optimizer, params.scalars(compile_params))
        self._compile_params, self._functions, self._watched = compile_params, functions, watched
        try:
            self._compile(self.model, self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
            self._metrics = make_metrics(params.reported_metrics(compile_params), functions, self.model)
        except Exception as error:
            raise ConfigurationError(f"Keras refuses to compile the model: {first_line(error)}") from error
        self._memory_of, self._name = functools.partial(memory_of, architecture), name
        self._lasting = not functions  # custom functions may change while their names stay
        self._scored = evaluation_key(architecture, compile_params, objects)
        self.kernels, self.forward = self._kernels(self.model), self._forward(self.model)
        self._metric = next(iter(params.reported_metrics(compile_params)), None)
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

    def _compile(self, model: Any, optimizer: Any) -> None:
        compile_params, functions = self._compile_params, self._functions

        def metrics(names: Any) -> Any:
            if not (names and self._watched):
                return None
            return [[metric for _, metric in own] for own in make_metrics(names, functions, self.model)]

        weighted = params.weighted_metrics(compile_params)
        reported = params.reported_metrics(compile_params)
        model.compile(
            optimizer=optimizer,
            loss=make_loss(compile_params["loss"], functions, self.model),
            metrics=metrics({name: of for name, of in reported.items() if name not in weighted}),
            weighted_metrics=metrics(weighted),
            loss_weights=compile_params["loss_weights"],
            jit_compile=False,
        )

    def _kernels(self, model: Any, part: str = "", layers: Any = None) -> Any:
        return TunedKernels(
            model,
            bool(seed_variables(self.model)),
            self._memory_of(part),
            self._name + part,
            layers,
            part.strip() or "model",
            self._lasting,
            self._own_class,
        )

    def check_trainable(self) -> None:
        """Raise ConfigurationError where the model has classes with code that cannot be trained (custom_models.py)."""
        if self._own_class is not None:
            custom_models.check_step(self.model, self._own_class)
        if self._custom and custom_classes(self.architecture):
            custom_models.check_attributes(self.model, self._own_class)

    def _forward(self, model: Any, part: str = "", layers: Any = None) -> Any:
        return Forward(
            model,
            Scores(
                model,
                self._compile_params["loss"],
                self._compile_params["loss_weights"],
                self._metrics,
                params.weighted_metrics(self._compile_params),
            ),
            layers,
            self._scored + part if self._lasting else None,
        )

    @functools.cached_property
    def cut(self) -> Any:
        """The model cut after its frozen prefix (prefixes.Cut); None without a frozen prefix, or with custom classes,
        whose code the digest of a prefix does not cover."""
        parts = None if self._custom else split(self.model)
        if parts is None:
            return None
        head, layers = parts.head, parts.head.own_layers
        self._compile(head, self.model.optimizer)
        return prefixes.Cut(parts, self._kernels(head, " head", layers), self._forward(head, " head", layers))

    @property
    def losses(self) -> Any:
        """The text of each output's loss."""
        return self._compile_params["loss"]

    @property
    def variables(self) -> Any:
        """Those of the model, of its optimizer and of its random streams."""
        return [v for group in self._groups.values() for v in group]

    @property
    def nbytes(self) -> Any:
        """Estimated memory of the model: variables, copies of their initial values, and compiled code."""
        cut = self.__dict__.get("cut")  # (only if it has been computed)
        all_kernels = [self.kernels, *([cut.kernels] if cut else [])]
        compiled = sum(kernels.compilations + (XLA_TIMES - 1) * kernels.by_xla for kernels in all_kernels)
        return self._variable_bytes + compiled * self._compiled_bytes

    def score(self, sums: Any) -> Any:
        """{"loss", "metric" (the first, or None), "metrics" ({name: value}), "rows"} from the sums of one or more
        Evaluations.
        """
        loss, metrics = self.forward.scores.results(np.asarray(sums[1:]), sums[0])
        return {"loss": loss, "metric": metrics.get(self._metric), "metrics": metrics, "rows": int(sums[0])}

    def set_scalars(self, compile_params: dict[str, Any]) -> None:
        """Give the model the scalars of parsed compile parameters that differ from its own in scalars only."""
        for name, value in params.scalars(compile_params).items():
            if name in self.scalars:
                self.scalars[name].assign(value)

    def start(self, seed: Any) -> None:
        """Put the model into the initial state of training: weights from `seed`, and an unused optimizer."""
        drawn_from, first = self._first
        if first is None or drawn_from != seed:
            first = initial_state(build(self.architecture, seed))
            self._first = (seed, first) if self._keeps_first else (None, None)
        self._assign({**first, "optimizer": self._fresh_optimizer})

    def load(self, data: Any) -> None:
        """Put the model into the state `data` (bytes of `save`)."""
        self._assign(state.unpack(data))

    def average(self, states: Any) -> None:
        """Replace the model's weights by the average of replicas. `states`: [(bytes of `save`, rows), ...]."""
        self.weights.put(self.weights_of(states[0][0], False, states, state.weights))

    def set_weights(self, data: Any) -> None:
        """Set the weights from float32 bytes (docs/contract/serialization.md); raises ConfigurationError where they do
        not fit.
        """
        self.model.set_weights(self.weights_of(data, True))

    def inherit(self, told: Any, data: Any) -> None:
        """Give the model, in its initial state, what it inherits from a trained one (inherited_weights.py).

        `told`: the parent's `architecture` (JSON text), the `layers` that inherit, and the `seed`; `data`: the parent's state
        (bytes of `save`). Raises ConfigurationError where these do not fit together.
        """
        parent = build(normalise(told["architecture"], custom=self._custom), 0)
        try:
            parent.set_weights(state.output_weights(data))
            self.model.set_weights(inherited(parent, self.model, told["layers"], told["seed"]))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise ConfigurationError(f"the weights of the parent cannot be inherited: {first_line(error)}") from error

    def weights_of(self, data: Any, plain: Any, replicas: Any = None, read: Any = state.output_weights) -> Any:
        """The weights in `data`, a model state (bytes of `save`) or, if `plain`, float32 bytes: a list of arrays.

        `replicas`: [(bytes of `save`, rows), ...], to take their average instead; `read` takes the weights from a
        state: state.output_weights the users' weights, state.weights the weights to continue training. Raises
        ConfigurationError.
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

    def save(self) -> Any:
        """The model's state as a list of buffers."""
        arrays = iter(self._variables.take())
        return state.pack(
            {name: list(itertools.islice(arrays, len(group))) for name, group in self._groups.items()}, self._averages
        )

    def values(self) -> Any:
        """The model's state as copies of its arrays, for `put_values`."""
        arrays = map(np.array, self._variables.take())
        return {name: list(itertools.islice(arrays, len(group))) for name, group in self._groups.items()}

    def put_values(self, values: Any) -> None:
        """Put the model into the state `values`, of this or of a similar CompiledModel; raises ConfigurationError."""
        self._assign(values)

    def _moving_averages(self) -> Any:
        """The positions of the optimizer's moving averages (`use_ema`), as state.pack expects them."""
        optimizer = self.model.optimizer
        if not optimizer.use_ema:
            return []
        weights = {id(v): position for position, v in enumerate(self._groups["weights"])}
        positions = {id(v): position for position, v in enumerate(self._groups["optimizer"])}
        return [
            (weights[id(v)], positions[id(own)])
            for v, own in zip(optimizer._trainable_variables, optimizer._model_variables_moving_average)
            if own is not None
        ]

    def _assign(self, groups: Any) -> None:
        for name, shapes in self._shapes.items():
            if [array.shape for array in groups[name]] != shapes:
                raise ConfigurationError(f"the model state does not fit the architecture ({name})")
        self._variables.put([array for name in self._groups for array in groups[name]])


def object_digests(objects: Any) -> Any:
    return [[name, hashlib.sha256(data).hexdigest()] for name, data in sorted(objects.items())]


def evaluation_key(architecture: str, compile_params: dict[str, Any], objects: Any) -> Any:
    """Text that is equal for equal evaluations, weights and rows aside."""
    wanted = {name: value for name, value in compile_params.items() if not name.startswith("optimizer")}
    return json.dumps([architecture, wanted, object_digests(objects)], sort_keys=True, default=str)
