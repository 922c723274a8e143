"""The trainer process, with frames on stdin and stdout.

`python -m mop_udf.trainer BACKEND LIFE THREADS CACHE_MB IDLE_MS MEMORY_MB MODEL_MB`, the last two 0 for no limit.
BACKEND, a process id, is there to be read in a list of processes; LIFE is a descriptor: see `live`. Or it is a fork of
mop_udf.fork_server, under the same name.

Requests, each answered by one frame unless it says otherwise:

    ready                                  -> versions (after Keras is imported)
    room                                   -> whether a segment fits the cache, and what is in it
    unit {...}, state parts*, states_end, rows*, end -> a report on each of its models, or {"error", "configuration"}
    save numbers                           -> the states of models of the last unit in parts, the last one marked
    score number, sums                     -> loss and metrics of a model of the last evaluation, from sums over rows
    model {...}, weights                   -> ok: a model to predict with
    predict rows                           -> one array per output
    export                                 -> that model as a .keras file
    import file                            -> the architecture and weights of a .keras file

An error in a unit is kept until the unit's `end`, so that the other side never waits for a reader.
"""

import dataclasses
import fcntl
import gc
import importlib
import itertools
import os
import select
import signal
import sys
import time

from mop_udf.channel import PART_BYTES
from mop_udf.errors import first_line

EVALUATED_ROWS = 1024  # at least, of a piece of rows that are not kept
F_SETSIG = 10  # Linux; Python's fcntl has no name for it


def die_with(life):
    """Be killed by the kernel, whatever this process does, as soon as nobody has the other end of the pipe `life`."""
    fcntl.fcntl(life, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it has gone before
        os._exit(0)


def first_to_go():
    """Be the kernel's first choice when memory ends."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("900")
    except OSError:
        pass


def keep_stdout():
    """Keep stdin and stdout for frames alone: the descriptors to read and to write those."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    return read_fd, write_fd


def import_frameworks():
    """Import Keras and its framework (KERAS_BACKEND) without what these import when it is there and use for nothing
    that a trainer does.

    That takes a third of the time and 60 MB. Custom functions may import these packages afterwards.
    """
    gc.disable()  # what is imported stays: looking for garbage in it takes a fifth of the time
    framework = os.environ.get("KERAS_BACKEND", "tensorflow")
    needed = {framework, "scipy"} if framework == "jax" else {framework}
    unused = [
        name
        for name in ("sklearn", "scipy", "pandas", "matplotlib", "IPython", "torch", "jax", "tensorflow")
        if name not in needed and name not in sys.modules
    ]
    for name in unused:
        sys.modules[name] = None
    import keras  # noqa: F401

    importlib.import_module(framework)
    for name in unused:
        del sys.modules[name]
    gc.freeze()
    gc.enable()


def import_own():
    """Import what a trainer will need of this package."""
    from mop_udf import data, models, prefixes, sizes, state  # noqa: F401
    from mop_udf.kernels import batch_size, device, forward, together  # noqa: F401


@dataclasses.dataclass
class Work:
    """A unit of training, its parameters parsed. Server finds out whether it `joins` others, and whether it is the
    `last` one to be begun."""

    unit: dict
    compile_params: dict
    fit: dict
    objects: dict
    joins: bool = False
    last: bool = False

    @property
    def forced(self):
        """The kernel that is asked for by name, or None."""
        return None if self.unit["kernel"] == "auto" else self.unit["kernel"]

    @property
    def epochs(self):
        return self.fit["epochs"] - self.fit["initial_epoch"]

    def random(self):
        """What permutes rows: the same order for every configuration, so that it does not matter which of them share
        this iteration."""
        import numpy as np

        return np.random.default_rng(
            [n & 0xFFFFFFFF for n in (self.unit["seed"], self.unit["iteration"], self.unit["segment"])]
        )


class Server:
    """Answers the requests of one backend."""

    def __init__(self, channel, threads, cache_mb, memory_mb, model_mb, lacks=None):
        """`lacks`: why it cannot do what it was started for."""
        from mop_udf import data, models, prefixes, sizes, state
        from mop_udf.kernels import batch_size, device, forward, together

        sizes.limit_mb, self.memory_mb = model_mb or None, memory_mb
        batch_size.limit_bytes = memory_mb << 20 if memory_mb else None
        self.forward, self.features, self.together = forward.Forward, prefixes.features, together
        self.channel, self.data, self.models, self.state = channel, data, models, state
        self.cache = data.Cache(cache_mb << 20)
        self.compiled = models.ModelCache(models.cache_bytes(memory_mb, threads))
        self.lacks = lacks
        self.where = device.described(threads)
        self.trained = []  # the states of the last unit's models, for `save`: lists of buffers
        self.evaluated = []  # the CompiledModels of the last evaluation
        self.predictor = None  # the Forward of a model to predict with
        self.described = None  # its architecture, as JSON

    def serve(self, idle_seconds):
        """Answer until the backend goes or nothing came for `idle_seconds`."""
        while self.channel.wait_readable(idle_seconds):
            header, payloads = self.channel.receive()
            getattr(self, "on_" + header["op"])(header, payloads)

    def on_ready(self, header, payloads):
        import keras

        self.channel.send({"keras": keras.__version__, "backend": keras.backend.backend()})

    def on_room(self, header, payloads):
        room = self.cache.room_for(header["nbytes"], header["keep"])
        self.channel.send({"room": room, "datasets": list(self.cache.segments)})

    def on_unit(self, unit, payloads):
        self.trained, self.wait_seconds = [], 0.0
        states = self._states()
        self.ended = False  # the unit's `end` has been read
        try:
            self._check()
            objects = iter(payloads)
            stream = self._chunks(unit)
            models = [{**unit, **model} for model in unit["models"]]
            reports = (self._train_all if unit["kind"] == "train" else self._evaluate)(models, states, objects, stream)
            for _ in stream:
                pass
            report = {"models": reports, "datasets": list(self.cache.segments)}
            self.channel.send(report)
        except Exception as error:
            self.trained = []
            if not self.ended:
                self._drain()
            self._refuse(error, datasets=list(self.cache.segments))

    def _check(self):
        if self.lacks:
            raise OSError(self.lacks)  # the place is to blame, not the configuration

    def _states(self):
        """{stage: bytes of its model state}, the unit's own first."""
        states = {}
        while True:
            header, payloads = self.channel.receive()
            if header["op"] == "states_end":
                return states
            if header["stage"] in states:
                states[header["stage"]] += payloads[0]  # (grows in place: a join would hold all of it twice)
            else:
                states[header["stage"]] = payloads[0]

    def _prepare(self, work, states):
        """The CompiledModel of a :class:`Work`, in the state that `states` says."""
        unit, compile_params, fit = work.unit, work.compile_params, work.fit
        own = states.get(unit["stage"])
        seed = None
        if own is None or unit["plain_weights"]:
            seed = self.models.initial_seed(
                unit["seed"], unit["model_id"], None if unit["same_start"] else unit["mst_key"]
            )
        compiled = self.compiled.get(
            unit["architecture"], compile_params, work.objects, seed, bool(fit["callbacks"]), fit["dropout"]
        )
        self.models.check_outputs(compiled.model, unit["outputs"])
        if seed is not None:
            compiled.start(seed)
            if own is not None:
                compiled.set_weights(own)
        else:
            began = time.monotonic()
            compiled.load(own)
            self.wait_seconds += time.monotonic() - began
            if replicas := self._replicas(unit, states):
                compiled.average(replicas)
        compiled.set_scalars(compile_params)
        states.pop(unit["stage"], None)
        if work.last:
            states.clear()  # they are not to take memory while it trains
        return compiled

    def _replicas(self, unit, states):
        """[(bytes of its state, rows), ...] of the replicas of which a unit's model is the average; or None."""
        return [(states[key], rows) for key, rows in unit["replicas"]] if unit.get("replicas") else None

    def _chunks(self, unit):
        """The segment's rows as (epoch, arrays): from the cache, or as they arrive (then kept while they fit)."""
        cached = self.cache.get(unit["dataset"])
        if unit["sends_rows"]:
            rows = yield from self._timed(
                self.data.receive_rows(self.channel, unit["dtypes"], unit["rows"] if unit["keeps_rows"] else None)
            )
            self.ended = True
            if unit["keeps_rows"]:
                if rows is None:
                    raise RuntimeError(f"segment {unit['segment']} did not send its {unit['rows']} rows")
                self.cache.segments[unit["dataset"]] = rows
        else:
            self.channel.receive()
            self.ended = True
            if cached is None:
                raise RuntimeError("the trainer does not hold the rows of this segment")
            yield 1, cached.columns

    def _timed(self, generator):
        """`generator`, its waiting added to wait_seconds (of states and rows); gives its return value."""
        while True:
            before = time.monotonic()
            try:
                item = next(generator)
            except StopIteration as stop:
                return stop.value
            finally:
                self.wait_seconds += time.monotonic() - before
            yield item

    def _train_all(self, units, states, objects, stream):
        """Train the models of several units on the same rows: reports. Those that may be are trained together, others
        one after the other."""
        works = [
            Work(
                unit,
                *self.models.parse(unit["compile_params"], unit["fit_params"], unit["iteration"]),
                {name: next(objects) for name in unit["objects"]},
            )
            for unit in units
        ]
        parts, done = self._parts(works), {}
        parts[-1][-1].last = True
        for part in parts:
            began, self.wait_seconds = time.monotonic(), 0.0
            compiled, together = self._train_together(part, states, stream)
            share = (time.monotonic() - began - self.wait_seconds) / len(part)
            for number, work in enumerate(part):
                began, self.wait_seconds = time.monotonic(), 0.0
                if together is None:
                    compiled = self._prepare(work, states)
                else:
                    together.put(number)
                report = (
                    self._train(work, compiled, stream)
                    if together is None or not together.trained
                    else (self._told(work, together.report(), compiled.kernels, 0 if number else together.compilations))
                )
                if report["loss"] != report["loss"]:
                    raise self.models.ConfigurationError("the loss became NaN")
                state = compiled.save()
                # the next one may be trained by the same variables
                done[id(work)] = (
                    state if len(units) == 1 else [b"".join(state)],
                    {**report, "seconds": share + time.monotonic() - began - self.wait_seconds},
                )
        self.trained = [done[id(work)][0] for work in works]
        return [done[id(work)][1] for work in works]

    def _parts(self, works):
        """Works in lists of those that may be trained together, as far as is known before their models are there."""
        parts = {}
        for number, work in enumerate(works):
            unit, fit = work.unit, work.fit
            work.joins = (
                self.together.may(unit["kernel"])
                and unit["keeps_rows"]
                and unit["epochs_sent"] == 1
                and not fit["callbacks"]
            )
            alike = (
                (
                    self.compiled.key(unit["architecture"], work.compile_params, work.objects, False, fit["dropout"]),
                    unit["kernel"],
                    fit["batch_size"],
                    work.epochs,
                    repr(fit["class_weight"]),
                    fit["steps_per_epoch"],
                    fit["shuffle"],
                    fit["shuffle"] and unit["iteration"],
                )
                if work.joins
                else number
            )
            parts.setdefault(alike, []).append(work)
        return [
            part[start : start + self.together.MOST]
            for part in parts.values()
            for start in range(0, len(part), self.together.MOST)
        ]

    def _train_together(self, part, states, stream):
        """Train the models of some works together: (the CompiledModel of them all, a Together with their states), which
        have been trained or are as they were; (None, None) where each is to be trained by itself.

        A kernel that is asked for by name trains a single one, too: what comes of it is the same in any company.
        """
        work = part[0]
        if not work.joins or len(part) == 1 and work.forced is None:
            return None, None
        together = None
        for each in part:
            compiled = self._prepare(each, states)
            together = together or self.together.Together(compiled.kernels)
            together.take()
        for _ in stream:
            pass
        unit, fit = work.unit, work.fit
        if work.forced is None:
            if unit.get("share_prefixes") and compiled.cut:
                return compiled, together
            compiled.kernels.remember(fit["batch_size"], unit.get("costs"), self.where)
        segment, random = self.cache.get(unit["dataset"]), work.random()
        together.train(
            (self._columns(segment, fit, random) for _ in range(work.epochs)),
            unit["rows"],
            fit["batch_size"],
            unit["inputs"],
            fit["class_weight"],
            fit["steps_per_epoch"],
            unit["passes_left"],
            unit["run_passes_left"],
            unit["run_seconds"],
            work.forced,
        )
        return compiled, together

    def _columns(self, segment, fit, random):
        """The rows of a segment for one pass."""
        return (
            self.data.permuted(segment, fit["shuffle"], fit["batch_size"], random)
            if fit["shuffle"]
            else (segment.columns)
        )

    def _train(self, work, compiled, stream):
        unit, fit = work.unit, work.fit
        kernels, inputs, features = compiled.kernels, unit["inputs"], None
        before, random, passes = kernels.compilations, work.random(), []

        def one_pass(chunks, streams):
            if work.forced is None:
                kernels.remember(fit["batch_size"], unit.get("costs"), self.where)
            passes.append(
                kernels.train(
                    chunks,
                    unit["rows"],
                    fit["batch_size"],
                    inputs,
                    fit["class_weight"],
                    fit["steps_per_epoch"],
                    unit["passes_left"] - len(passes),
                    unit["run_passes_left"] - len(passes),
                    unit["run_seconds"],
                    work.forced,
                    streams,
                )
            )

        if unit["epochs_sent"] > 1 or not unit["keeps_rows"]:
            if fit["shuffle"]:
                raise self.models.ConfigurationError(
                    f"shuffle needs the rows of segment {unit['segment']} in memory ({unit['nbytes'] >> 20} MB), "
                    f"but they do not fit pg_mop.cache_mb"
                )
            # the rows are sent for every epoch, one after the other
            for _, epoch in itertools.groupby(stream, key=lambda item: item[0]):
                one_pass((arrays for _, arrays in epoch), True)
        else:
            # (a few steps are on a part of the rows)
            if not fit["steps_per_epoch"]:
                features = self.features(self.cache, unit, compiled)
            if unit["sends_rows"] and not self.ended and not fit["shuffle"] and not features:
                one_pass((arrays for _, arrays in stream), True)  # reading and training overlap
            for _ in stream:
                pass
            segment = self.cache.get(unit["dataset"])
            if features and (shared := features.segment(fit["batch_size"])):
                segment, kernels, inputs = shared, compiled.cut.kernels, 1
                before = kernels.compilations
            for _ in range(work.epochs - len(passes)):
                one_pass([self._columns(segment, fit, random)], False)
        if fit["callbacks"]:
            from mop_udf.callbacks import TensorBoard

            with TensorBoard(fit["callbacks"], unit["segment"], compiled.model) as board:
                for number, logs in enumerate(passes):
                    board.passed((unit["iteration"] - 1) * len(passes) + number, logs)
        return self._told(
            work,
            passes[-1],
            kernels,
            kernels.compilations - before,
            {"prefix": compiled.cut.report(kernels)} if features else {},
        )

    def _told(self, work, last, kernels, compilations, more=None):
        """What is told of a model that has been trained; `last`: the report of its last pass."""
        return {
            "loss": last["loss"],
            "rows": last["rows"],
            "kernel": last["kernel"],
            "compilations": compilations,
            "choice": {
                **kernels.choice(work.fit["batch_size"], work.forced).numbers(),
                "version": self.where[0],
                "device": self.where[1],
                **(more or {}),
            },
        }

    def _evaluate(self, units, states, objects, stream):
        """Evaluate the models of several units on the same rows, read once; the first unit says which rows."""
        evaluations = [self._evaluation(unit, states, objects) for unit in units]
        self.evaluated = [evaluation.compiled for evaluation in evaluations]
        if units[0]["keeps_rows"]:
            for _ in stream:
                pass
            pieces = [self.cache.get(units[0]["dataset"]).columns]
        else:
            pieces = self.data.whole_batches((arrays for _, arrays in stream), EVALUATED_ROWS)
        for piece in pieces:
            for evaluation in evaluations:
                evaluation.add(piece)
        return [evaluation.report() for evaluation in evaluations]

    def _evaluation(self, unit, states, objects):
        """The Evaluation of a unit's model."""
        compile_params, _ = self.models.parse(unit["compile_params"], unit["fit_params"])
        compiled = self.compiled.evaluator(
            unit["architecture"], compile_params, {name: next(objects) for name in unit["objects"]}
        )
        self.models.check_outputs(compiled.model, unit["outputs"])
        weights = compiled.weights_of(states[unit["stage"]], unit["plain_weights"], self._replicas(unit, states))
        return self.models.Evaluation(
            compiled, weights, unit["inputs"], self.features(self.cache, unit, compiled, weights)
        )

    def _drain(self):
        """Read what remains of the unit's frames, so that its answer is next."""
        while True:
            header, _ = self.channel.receive()
            if header["op"] == "end":
                return

    def on_save(self, header, payloads):
        parts = [
            (number, part)
            for number in header["numbers"]
            for part in self.state.parts(self.trained[number], PART_BYTES)
        ]
        for place, (number, part) in enumerate(parts, 1):
            self.channel.send({"number": number, "last": place == len(parts)}, *part, more=place < len(parts))

    def on_score(self, header, payloads):
        try:
            self.channel.send(self.evaluated[header["number"]].score(header["sums"]))
        except Exception as error:
            self._refuse(error)

    def on_model(self, header, payloads):
        try:
            self._check()
            model = self.models.build(self.models.normalise(header["architecture"]), 0)
            model.set_weights(self.state.weights_from_bytes(payloads[0], [w.shape for w in model.weights]))
            self.predictor, self.described = self.forward(model), header["architecture"]
            self.channel.send({"outputs": self.models.output_shapes(model)})
        except Exception as error:
            self._refuse(error)

    def on_predict(self, header, payloads):
        try:
            import numpy as np

            x = [np.frombuffer(p, "<f4").reshape(s) for p, s in zip(payloads, header["shapes"])]
            outputs = self.predictor.predict(x)
            self.channel.send(
                {"shapes": [list(o.shape) for o in outputs]},
                *(np.ascontiguousarray(o).reshape(-1).view(np.uint8) for o in outputs),
            )
        except Exception as error:
            self._refuse(error)

    def on_export(self, header, payloads):
        try:
            from mop_udf import keras_file

            self.channel.send({}, keras_file.save(self.predictor.model, self.models.normalise(self.described)))
        except Exception as error:
            self._refuse(error)

    def on_import(self, header, payloads):
        try:
            from mop_udf import keras_file

            text, weights = keras_file.load(payloads[0])
            self.channel.send({"architecture": text}, weights)
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error, **more):
        text = (
            str(error)
            if isinstance(error, self.models.ConfigurationError)
            else (f"{type(error).__name__}: {first_line(error)}")
        )
        self.channel.send({"error": text, "configuration": self._blames_configuration(error), **more})

    def _blames_configuration(self, error):
        """Whatever Keras or TensorFlow raise while they work comes of the configuration.

        So does a lack of memory where that is limited; where it is not, it may be others that use it up.
        """
        return not isinstance(error, OSError if self.memory_mb else (MemoryError, OSError))


def live(backend, life, threads, cache_mb, idle_ms, memory_mb, model_mb):
    """Be the trainer of a process that has the writing end of the pipe `life`; ends this process."""
    die_with(life)
    first_to_go()
    read_fd, write_fd = keep_stdout()
    import faulthandler

    faulthandler.enable()
    from mop_udf.channel import Channel, ChannelClosed

    channel = Channel(read_fd, write_fd)
    import_frameworks()
    from mop_udf.kernels.framework import own as framework

    lacks = framework.begin(threads)
    try:
        Server(channel, threads, cache_mb, memory_mb, model_mb, lacks).serve(idle_ms / 1000 if idle_ms else None)
    except ChannelClosed:
        pass
    # no clean-up to do, and TensorFlow's takes time
    os._exit(0)


if __name__ == "__main__":
    live(*map(int, sys.argv[1:8]))
