"""The trainer's side of the channel: answers the requests of one backend.

Each request is one frame and is answered by one frame, unless the table says otherwise:

    ready                                  -> versions
    reset                                  -> what stays for the next lease, from a relay (relay.py)
    capacity                               -> whether a segment fits the cache, and the segments in the cache
    unit {...}, state parts*, states_end, rows*, end -> a report on each of its models, or {"error", "configuration"}
                                              (of kind "load": its rows are kept for a chain, and it has no models;
                                              of a chain: a report on each model for each step)
    save numbers                           -> the states of models of the last unit in parts, the last part marked
    score number, sums                     -> loss and metrics of a model of the last evaluation, from sums over rows
    model {...}, weights                   -> the output shapes of a model that predicts from now on
    predict rows                           -> one array per output; with a digest, of the model that it names (predictors.py)
    export                                 -> that model as a .keras file
    import file                            -> the architecture and weights of a .keras file
    layer_shape {...}, pickles             -> the output shape of a custom layer, or why it takes no such inputs
    baselines rows, targets, other rows    -> scikit-learn's predictions for the other rows, if it is installed
    boosting rows, validation rows         -> LightGBM's trials, and of the best their texts and answers, if it is installed
    linear   rows, validation rows         -> the trials of linear models, and of the best their weights and answers
    mlp      rows, validation rows         -> the same of multilayer perceptrons
                                              (before its answer, a search tells of the trials so far: "done", "best")
    refit    rows                          -> texts of trees, or weights of linear models, with given parameters; with folds,
                                              the answers of such models for rows of other folds

An error in a unit is kept until the unit's `end`, so the backend can always go on sending.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from mop_udf import data, state
from mop_udf.kernels import batch_size, device
from mop_udf.kernels.framework import framework
from mop_udf.pool import pool
from mop_udf.pool.channel import PART_BYTES, Channel
from mop_udf.training import chain, custom_layers, evaluation, model_cache, models, prefixes, sizes, super_net
from mop_udf.training.losses import load_functions
from mop_udf.training.predictors import Predictor, Predictors, arrays_of, failure, outputs_frame
from mop_udf.training.unit_rows import UnitRows
from mop_udf.training.unit_training import UnitTraining, replica_states
from mop_udf.unit_spec import TrainerUnit, UnitRequest, steps_of

Header = dict[str, Any]  # of a request
Payloads = list[bytearray]
TELL_SECONDS = 0.5  # between two frames that tell of the trials of a search
EVALUATED_ROWS = 1024  # least rows of a piece that is evaluated at once, where rows are not kept


class TrainerServer:
    """Answers the requests of one backend, and after `reset` those of the next.

    `may_be_leased_again`: false once the trainer has run a user's code, a custom function, or has read a .keras file.
    """

    def __init__(
        self,
        channel: Channel,
        threads: int,
        cache_mb: int,
        memory_mb: int,
        model_mb: int,
        device_error: str | None = None,
    ) -> None:
        """`memory_mb`, `model_mb`: limits, 0 for none; `device_error`: why this process cannot use its GPU, or None."""
        sizes.limit_mb, self.memory_mb = model_mb or None, memory_mb
        batch_size.limit_bytes = memory_mb << 20 if memory_mb else None
        self.channel, self.device_error = channel, device_error
        self.cache = data.Cache(cache_mb << 20)
        self.compiled_models = model_cache.ModelCache(model_cache.cache_bytes(memory_mb, threads))
        self.device = device.described(threads)
        self.may_be_leased_again = device_error is None
        self._forget()

    def _forget(self) -> None:
        """Keep nothing but what is named by its content."""
        self.trained: list[Any] = []  # the states of the last unit's models, for `save`: lists of buffers
        self.evaluated: list[Any] = []  # the CompiledModels of the last evaluation
        self.predictor: Predictor | None = None  # the model that predicts
        self.predictors = Predictors(self.memory_mb)  # the models that requests name by their digest

    def serve(
        self,
        idle_seconds: float | None,
        at_work: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Answer requests until the backend closes the pipe between two requests, or sends nothing for `idle_seconds`.

        Each request is answered within the context `at_work()`. Raises ChannelClosed if the pipe ends within a request.
        """
        while self.channel.wait_readable(idle_seconds) and not self.channel.has_ended():
            with at_work():
                header, payloads = self.channel.receive()
                getattr(self, "on_" + header["op"])(header, payloads)

    def reset(self) -> dict[str, Any]:
        """Forget the lease that has ended. Returns what the trainer keeps (see pool.Member).

        Compiled models stay, and so do rows and features. Both are named by their content, and units set weights,
        optimizer variables and random states before they use a model.
        """
        self._forget()
        framework.seed(0)
        return {
            "nets": pool.names(self.compiled_models.nets),
            "datasets": pool.names(map(str, self.cache.segments)),
            "rows_bytes": self.cache.used(),
        }

    def on_reset(self, header: Header, payloads: Payloads) -> None:
        """A relay's lease has ended."""
        held = self.reset()
        self.channel.send({"held": held if self.may_be_leased_again else None})

    def on_ready(self, header: Header, payloads: Payloads) -> None:
        self.channel.send({"keras": keras.__version__, "backend": keras.backend.backend()})

    def on_capacity(self, header: Header, payloads: Payloads) -> None:
        fits = self.cache.make_capacity(header["nbytes"], header["keep"])
        self.channel.send({"fits": fits, "datasets": list(self.cache.segments)})

    def on_unit(self, header: Header, payloads: Payloads) -> None:
        unit = UnitRequest.from_json(header)
        self.trained = []
        states, rows = self._receive_states(), UnitRows(self.channel, self.cache, unit)
        if payloads:  # custom functions
            self.may_be_leased_again = False
        try:
            self._check_device()
            units, objects = unit.units(), iter(payloads)
            if unit.then:
                rows.finish()
                reports, self.trained = chain.train(
                    steps_of(unit), objects, states, self.cache, self.compiled_models, self.device
                )
            elif unit.kind == "load":
                reports = []
            elif unit.kind == "train":
                reports, self.trained = UnitTraining(
                    units, objects, states, rows, self.cache, self.compiled_models, self.device
                ).run()
            else:
                reports = self._evaluate(units, objects, states, rows)
            rows.finish()
            self.channel.send({"models": reports, "datasets": list(self.cache.segments)})
        except Exception as error:
            self.trained = []
            rows.drain()
            self._refuse(error, datasets=list(self.cache.segments))

    def _check_device(self) -> None:
        if self.device_error:
            raise OSError(self.device_error)  # the machine is to blame, not the configuration

    def _receive_states(self) -> dict[int, bytearray]:
        """{stage: bytes of its model state}, the unit's own first."""
        states: dict[int, bytearray] = {}
        while True:
            header, payloads = self.channel.receive()
            if header["op"] == "states_end":
                return states
            if header["stage"] in states:
                states[header["stage"]] += payloads[0]  # (grows in place: a join would hold all parts twice)
            else:
                states[header["stage"]] = payloads[0]

    def _evaluate(
        self, units: Sequence[TrainerUnit], objects: Iterator[Any], states: dict[int, bytearray], rows: UnitRows
    ) -> list[dict[str, Any]]:
        """Evaluate the models of several units on the same rows, read once; the first unit names the rows."""
        evaluations = [self._evaluation(unit, objects, states) for unit in units]
        self.evaluated = [evaluated.compiled for evaluated in evaluations]
        pieces: Iterable[data.Arrays]
        if units[0].keeps_rows:
            rows.finish()
            segment = self.cache.get(units[0].dataset)
            assert segment is not None
            pieces = [segment.columns]
        else:
            pieces = data.whole_batches((arrays for _, arrays in rows), EVALUATED_ROWS)
        for piece in pieces:
            for evaluated in evaluations:
                evaluated.add(piece)
        return [evaluated.report() for evaluated in evaluations]

    def _evaluation(
        self, unit: TrainerUnit, objects: Iterator[Any], states: dict[int, bytearray]
    ) -> evaluation.Evaluation:
        """The Evaluation of a unit's model."""
        compile_params, _ = models.parse(unit.compile_params, unit.fit_params)
        compiled = self.compiled_models.evaluator(
            unit.architecture, compile_params, {name: next(objects) for name in unit.objects}
        )
        models.check_outputs(compiled.model, unit.outputs, compiled.losses)
        models.check_weights(compiled.model, None, unit)
        weights = compiled.weights_of(states[unit.stage], unit.plain_weights, replica_states(unit, states))
        if unit.path is not None and (at := super_net.path_position(compiled.model)) is not None:
            weights = [*weights[:at], np.array(unit.path, "f4"), *weights[at + 1 :]]
        return evaluation.Evaluation(
            compiled, weights, unit.inputs, prefixes.features(self.cache, unit, compiled, weights)
        )

    def on_save(self, header: Header, payloads: Payloads) -> None:
        parts = [
            (number, part) for number in header["numbers"] for part in state.parts(self.trained[number], PART_BYTES)
        ]
        for position, (number, part) in enumerate(parts, 1):
            self.channel.send({"number": number, "last": position == len(parts)}, *part, more=position < len(parts))

    def on_score(self, header: Header, payloads: Payloads) -> None:
        try:
            self.channel.send(self.evaluated[header["number"]].score(header["sums"]))
        except Exception as error:
            self._refuse(error)

    def on_model(self, header: Header, payloads: Payloads) -> None:
        try:
            self._check_device()
            weights, *pickles = payloads
            if pickles:  # custom layers and models
                self.may_be_leased_again = False
            self.predictor = Predictor(header, weights, pickles)
            self.channel.send({"outputs": self.predictor.outputs})
        except Exception as error:
            self._refuse(error)

    def on_predict(self, header: Header, payloads: Payloads) -> None:
        if "digest" in header:
            if header.get("objects"):
                self.may_be_leased_again = False
            ((answer, outputs),) = self.predictors.answers([(header, payloads)])
            self.channel.send(answer, *outputs)
            return
        try:
            assert self.predictor is not None
            answer, outputs = outputs_frame(self.predictor.forward.predict(arrays_of(header, payloads)))
            self.channel.send(answer, *outputs)
        except Exception as error:
            self._refuse(error)

    def on_export(self, header: Header, payloads: Payloads) -> None:
        try:
            from mop_udf.training import keras_file, raw_model

            assert self.predictor is not None
            model = self.predictor.forward.model
            if "raw" in header:
                file = keras_file.written(raw_model.build(model, **header["raw"]))
            else:
                file = keras_file.save(model, models.normalise(self.predictor.architecture))
            self.channel.send({}, file)
        except Exception as error:
            self._refuse(error)

    def on_import(self, header: Header, payloads: Payloads) -> None:
        self.may_be_leased_again = False  # a file of unknown origin
        try:
            from mop_udf.training import keras_file

            text, weights = keras_file.load(payloads[0])
            self.channel.send({"architecture": text}, weights)
        except Exception as error:
            self._refuse(error)

    def on_pictures(self, header: Header, payloads: Payloads) -> None:
        try:
            from mop_udf.training import pictures

            answer, made = pictures.answer(header, payloads)
            self.channel.send(answer, *made)
        except Exception as error:
            self._refuse(error)

    def on_layer_shape(self, header: Header, payloads: Payloads) -> None:
        self.may_be_leased_again = False  # (a custom layer)
        try:
            from mop_udf.training import layer_shapes

            self._check_device()
            objects = dict(zip(header["objects"], payloads, strict=True))
            custom = custom_layers.register(objects, load_functions(objects))
            self.channel.send(layer_shapes.told(header["layer"], header["shapes"], header["listed"], custom))
        except Exception as error:
            self._refuse(error)

    def on_baselines(self, header: Header, payloads: Payloads) -> None:
        try:
            from mop_udf.training import baselines

            shape, other = header["shapes"]
            x, others = (np.frombuffer(p, "<f4").reshape(s) for p, s in ((payloads[0], shape), (payloads[2], other)))
            targets = np.frombuffer(payloads[1], "<f8")
            limits = header["seconds"], header["threads"]
            words = [np.frombuffer(p, "<f4").reshape(s) for p, s in zip(payloads[3:], header["words"])]
            texts = list(zip(words[::2], words[1::2]))
            found = baselines.predictions(x, targets, others, header["regression"], *limits, texts)
            self.channel.send(
                {"names": [name for name, _, _ in found], "classes": [classes for _, classes, _ in found]},
                *(np.ascontiguousarray(made, "<f8").reshape(-1).view(np.uint8) for _, _, made in found),
            )
        except Exception as error:
            self._refuse(error)

    def on_boosting(self, header: Header, payloads: Payloads) -> None:
        try:
            from mop_udf.training import boosting

            given = iter(payloads)
            parts = zip(header["shapes"], header["weighted"], strict=True)
            train, valid = (boosting.rows_of(shape, is_weighted, given) for shape, is_weighted in parts)
            limits = {name: header[name] for name in ("until", "most", "threads", "seed", "kept", "objective")}
            trials = boosting.search(train, valid, header["codes"], header["classes"], **limits, told=self._telling())
            self._send_trials(trials, lambda one: one.text.encode())
        except ImportError as error:
            self.channel.send({"absent": str(error)})
        except Exception as error:
            self._refuse(error)

    def on_linear(self, header: Header, payloads: Payloads) -> None:
        from mop_udf.training import linear

        self._search_whole(header, payloads, linear.search)

    def on_mlp(self, header: Header, payloads: Payloads) -> None:
        from mop_udf.training import perceptrons

        limits = {name: header[name] for name in ("dimensions", "most", "seed")}
        self._search_whole(header, payloads, functools.partial(perceptrons.search, **limits))

    def _search_whole(self, header: Header, payloads: Payloads, search: Callable[..., list[Any]]) -> None:
        """Answer with the trials of models that are trained whole, and with the weights and the answers of the best."""
        try:
            from mop_udf.training import linear
            from mop_udf.training.number_losses import NumberLoss

            given = iter(payloads)
            train, valid = (linear.rows_of(shapes, weighted, given) for shapes, weighted in header["rows"])
            codes, pieces = linear.read_design(header)
            limits = {name: header[name] for name in ("classes", "until", "kept")}
            limits["loss"] = NumberLoss(*header["loss"])
            trials = search(train=train, valid=valid, codes=codes, pieces=pieces, **limits, told=self._telling())
            self._send_trials(trials, lambda one: linear.flat(one.weights))
        except ImportError as error:
            self.channel.send({"absent": str(error)})
        except Exception as error:
            self._refuse(error)

    def _telling(self) -> Callable[[Sequence[Any]], None]:
        """A function that tells the backend of the trials so far, now and then."""
        told_at = 0.0

        def tell(trials: Sequence[Any]) -> None:
            nonlocal told_at
            if time.monotonic() > told_at + TELL_SECONDS:
                told_at, best = time.monotonic(), min(one.loss for one in trials)
                self.channel.send({"done": len(trials), "best": best if math.isfinite(best) else None, "last": False})

        return tell

    def _send_trials(self, trials: Sequence[Any], content: Callable[[Any], Any]) -> None:
        """Send all trials as JSON, and of those that are kept the `content` and the answers."""
        kept = [(number, one) for number, one in enumerate(trials) if one.answers is not None]
        answer = {"trials": [one.to_json() for one in trials], "kept": [number for number, _ in kept]}
        contents = [content(one) for _, one in kept]
        answers = (np.ascontiguousarray(one.answers, "<f8").reshape(-1).view(np.uint8) for _, one in kept)
        self.channel.send(answer, *contents, *answers)

    def on_refit(self, header: Header, payloads: Payloads) -> None:
        try:
            given, classes, models = iter(payloads), header["classes"], header["models"]
            ((shapes, is_weighted),) = header["rows"]
            family: Any
            rows: Any
            content: Callable[[Any], Any]
            if header["family"] in ("linear", "mlp"):
                from mop_udf.training import linear, perceptrons
                from mop_udf.training.number_losses import NumberLoss

                loss = NumberLoss(*header["loss"])
                rows, (codes, pieces) = linear.rows_of(shapes, is_weighted, given), linear.read_design(header)
                options = {"codes": codes, "pieces": pieces, "classes": classes, "loss": loss}
                family, content = linear, linear.flat
                if header["family"] == "linear":
                    models = [tuple(own) for own in models]
                else:
                    family, models = perceptrons, [(perceptrons.Recipe.read(params), n) for params, n in models]
                    options.update(dimensions=header["dimensions"], seed=header["seed"])
            else:
                from mop_udf.training import boosting

                family, content = boosting, str.encode
                rows = boosting.rows_of(shapes[0], is_weighted, given)
                options = {name: header[name] for name in ("codes", "classes", "threads", "seed", "objective")}
            if header.get("folds") is None:
                self.channel.send({}, *map(content, family.refit(rows, models=models, **options)))
                return
            from mop_udf.training import fold_answers

            answering = functools.partial(family.answering, **options)
            answers = fold_answers.of_models(rows, np.array(header["folds"]), models, answering, header["until"])
            self.channel.send({}, *(np.ascontiguousarray(own, "<f8").reshape(-1).view(np.uint8) for own in answers))
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: Exception, **more: Any) -> None:
        self.channel.send({**failure(error, self.memory_mb), **more})
