"""A compiled model's kernels, and the choice among them: what the trainer trains with."""

import time

from mop_udf.data import whole_batches
from mop_udf.errors import refusal
from mop_udf.kernels.batches import once, weighted
from mop_udf.kernels.choice import TWICE, Choice
from mop_udf.kernels.framework import own as framework
from mop_udf.kernels.training_metrics import TrainingMetrics

TIMED = 8  # plain batches that are timed, after the one in which the step is compiled


class Chosen:
    """Trains by the kernel that is fastest for the batch size."""

    def __init__(self, model, random, learned, name="", layers=None, part="model", lasting=False):
        """`random`: the model draws random numbers while it trains (Dropout and the like); `learned`: what other
        models of its architecture have shown; `name`: equal for models that are compiled alike; `layers`: those that
        the rows go through, all of the model's if None; `part`: what of the net it is, by which costs are kept;
        `lasting`: the name says all, where custom functions may do otherwise another time."""
        self.part = part
        self.model, self.plain, self.learned, self.name = model, framework.Plain(model), learned, name
        self.metrics, self.loops = TrainingMetrics(model), framework.loops(model, name, lasting)
        self.group = framework.Group(model, name) if framework.Group else None  # for several states: see together.py
        self.layers = layers or list(model._flatten_layers())
        self.choices = {}  # (batch size, what is forced) -> Choice
        self.convolutional = any("Conv" in type(layer).__name__ for layer in self.layers)
        self.refused = framework.refused(random, self.convolutional)

    @property
    def compilations(self):
        """How often this model's steps and loops have been compiled."""
        return len(self.plain.steps) + sum(loop.compilations for loop in self._all_loops())

    @property
    def by_xla(self):
        """How many of these loops XLA has compiled."""
        return sum(loop.compilations for loop in self._all_loops() if loop.jit_compile)

    def _all_loops(self):
        return [*self.loops.values(), *([self.group] if self.group else [])]

    def choice(self, batch_size, forced):
        """The :class:`Choice` for a batch size; `forced`: a kernel's name, or None to choose by time."""
        key = (batch_size, forced)
        if key not in self.choices:
            self.choices[key] = Choice(
                self.learned,
                forced,
                self.convolutional,
                framework.has_gpu(),
                f"{self.name} {batch_size}",
                refused=self.refused,
            )
        return self.choices[key]

    def remember(self, batch_size, costs, where):
        """Before anything is chosen for a batch size: what earlier runs have measured, `costs` as the coordinator tells
        it (pg_mop/plan/cost_history.py), on what is like `where` (device.described)."""
        if (batch_size, None) in self.choices or not costs:
            return

        def mine(rows):
            return {
                kernel: measured
                for part, version, device, kernel, *measured in rows
                if (part, version, device) == (self.part, *where) and (kernel == "plain" or kernel in self.loops)
            }

        choice, known = self.choice(batch_size, None), mine(costs.get("known", ()))
        choice.known = {kernel: (seconds, compiling) for kernel, (seconds, compiling, _) in known.items()}
        choice.runs = known[choice.base][2] if choice.base in known else 0
        for kernel, (times, compiling, _) in mine(costs.get("alike", ())).items():
            self.learned.speedup.setdefault(kernel, 1 / times)
            self.learned.compile_seconds.setdefault(kernel, compiling)

    def train(
        self,
        chunks,
        rows,
        batch_size,
        inputs,
        class_weight=None,
        most=None,
        left=1,
        run_left=1,
        run_seconds=0.0,
        forced=None,
        streams=False,
    ):
        """One pass over `rows` rows, at most `most` batches.

        `chunks`: tuples of arrays (inputs, then outputs): one that holds all rows or, where it `streams`, one after the
        other as they arrive.
        `left`, `run_left`: how many such passes are still to come in the run, of this key and of all, this included;
        `run_seconds`: since the run began. Returns a report, and under "kernel" the name of the one that trained
        most batches.
        """
        choice = self.choice(batch_size, forced)
        total = -(-rows // batch_size) if most is None else min(most, -(-rows // batch_size))
        self.metrics.reset(self.plain.trains)
        choice.busy.clear()
        trained, position, done = {}, 0, 0
        for columns in whole_batches(chunks, batch_size) if streams else chunks:
            piece = Piece(self, columns, batch_size, inputs, class_weight, choice, rows < batch_size)
            end = min(-(-len(columns[0]) // batch_size), total - position)
            at = 0
            while at < end:
                name = choice.next(left * total - position, run_left * total - position, run_seconds)
                name, count = piece.train(name, at, end)
                trained[name] = trained.get(name, 0) + count
                at, position = at + count, position + count
            done += min(len(columns[0]), end * batch_size)
            if position == total:
                break
        return {**self.metrics.report(done), "kernel": max(trained, key=trained.get)}


class Piece:
    """Rows in memory: a whole number of batches, after which a short one may come; `few`: that is all of the pass."""

    def __init__(self, kernels, columns, batch_size, inputs, class_weight, choice, few):
        self.plain, self.loops = kernels.plain, kernels.loops
        self.columns, self.batch_size, self.inputs, self.class_weight = columns, batch_size, inputs, class_weight
        self.choice, self.few = choice, few
        self.full = len(columns[0]) // batch_size
        self._data = None
        self._weighting = inputs, str(class_weight)  # decides what is made of the rows

    def train(self, name, start, stop):
        """Train on some of the batches `start` to `stop` by kernel `name`: (the kernel that did it, batches done)."""
        hasty = False
        if start == self.full:
            # beside what XLA trains, as good as any: one batch is not worth what makes a loop faster
            hasty = name == "xla" and not self.few
            name = self._of_short_batch(name)
        else:
            stop = min(stop, self.full)
        if name != "plain" and not self.plain.trains:
            self.plain.begin(self._batch(start), self.inputs, self.class_weight)
            return name, 0
        if name == "plain":
            return name, self._plain(start, stop)
        loop = self.loops[name]
        loop.kept, loop.kept_as, loop.hasty = self.columns, self._weighting, hasty
        try:
            return name, self._loop(name, start, stop)
        finally:
            loop.kept, loop.hasty = None, False  # it is not to hold rows that others drop

    def _of_short_batch(self, name):
        """The kernel for the short batch: none is compiled or tried for its sake where another will do."""
        if "loop" in self.choice.refused or self.choice.forced == "plain" or not self.loops["loop"].takes_short:
            return "plain"
        return name if name == "plain" and "plain" in self.choice.batch_seconds else "loop"

    def _batch(self, number):
        return tuple(c[number * self.batch_size : (number + 1) * self.batch_size] for c in self.columns)

    def _plain(self, start, stop):
        """Batches by the plain kernel: how many. Its first step compiles, then a few are timed; full ones alone."""
        choice, count, short = self.choice, stop - start, start == self.full
        if ("plain" not in choice.batch_seconds or choice.is_doubtful("plain")) and not short:
            count = min(count, 1 if "plain" not in choice.compile_seconds else TIMED)
        began = time.monotonic()
        for number in range(start, start + count):
            self.plain.step(self._batch(number), self.inputs, self.class_weight, not short)
        seconds = (time.monotonic() - began) / count
        if short:
            return count
        if "plain" not in choice.compile_seconds:
            choice.compile_seconds["plain"] = seconds
        elif "plain" not in choice.batch_seconds:
            choice.tried("plain", seconds, choice.compile_seconds["plain"])
        elif count > 1 or choice.is_doubtful("plain"):
            choice.timed("plain", seconds)
        return count

    def _loop(self, name, start, stop):
        """Batches by a loop kernel: how many; 0 where it cannot train this model, and `choice` then knows why."""
        choice, loop, short = self.choice, self.loops[name], start == self.full
        if self._data is None:
            self._data = once(
                self.columns,
                self._weighting,
                lambda: framework.tensors(weighted(self.columns, self.inputs, self.class_weight)),
            )
        if not loop.knows(self._data, self.batch_size):
            if choice.is_doubtful(name):  # it is not worth another compilation to know better
                choice.timings[name] = TWICE
                return 0
            try:
                compile_seconds = loop.compile(self._data, self.batch_size, choice.waits(name))
            except Exception as error:
                choice.refused[name] = refusal(error)
                return 0
            if compile_seconds is None:  # by another trainer: it is looked at again in the next pass
                choice.busy.add(name)
                return 0
            choice.tried(name, None, compile_seconds)
        if short:
            loop.train(self._data, self.batch_size, start, stop, 1.0)
        elif name in choice.batch_seconds and not choice.is_doubtful(name):
            choice.timed(name, loop.train(self._data, self.batch_size, start, stop, choice.batch_seconds[name]))
        else:
            count, seconds = loop.probe(self._data, self.batch_size, start, stop)
            if name not in choice.batch_seconds:
                choice.tried(name, seconds, choice.compile_seconds.get(name, 0.0))
            elif seconds is not None:
                choice.timed(name, seconds)
            return count
        return stop - start
