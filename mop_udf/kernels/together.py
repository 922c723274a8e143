"""States of one compiled model, trained on the same rows as one computation, where the framework has a kernel for it.

What cannot be trained so is left as it was, to be trained one after the other.
"""

import keras

from mop_udf.errors import refusal
from mop_udf.kernels.batch_size import ENOUGH
from mop_udf.kernels.batches import weighted
from mop_udf.kernels.choice import TOGETHER
from mop_udf.kernels.forward import row_bytes
from mop_udf.kernels.framework import own as framework

MOST = framework.Group.most if framework.Group else 1  # states
COPIES = 4  # of what a state, or the layers' outputs for a batch, take: old and new ones, and those of gradients


def may(kernel):
    """True where models that a kernel's name (or "auto") is asked for could be trained so."""
    return framework.Group is not None and (kernel == TOGETHER or kernel == "auto" and framework.has_gpu())


class Together:
    """States that a model with its :class:`~mop_udf.kernels.chosen.Chosen` has been in."""

    def __init__(self, kernels):
        self.kernels, self.group = kernels, kernels.group
        self.states, self.rows, self.trained, self.compilations = [], 0, False, 0

    def take(self):
        """Add the state that the model is in, with its optimizer's numbers."""
        self.states.append(self.group.held())

    def put(self, number):
        """Put the model into a state: as it was taken or, if they have been trained, as it is after that."""
        self.group.put(self.states[number])

    def train(
        self,
        passes,
        rows,
        batch_size,
        inputs,
        class_weight=None,
        most=None,
        left=1,
        run_left=1,
        run_seconds=0.0,
        forced=None,
    ):
        """Train all states by some passes over `rows` rows, if that pays: `trained` tells. If not, they stay.

        `passes`: an iterable that gives for each pass a tuple of arrays, which holds all rows. The other arguments are
        those of Chosen.train.
        """
        choice, batches = self.kernels.choice(batch_size, forced), -(-rows // batch_size)
        self.rows = rows if most is None else min(rows, most * batch_size)
        if not choice.together(left * batches, run_left * batches, run_seconds):
            return
        before = self.kernels.compilations
        try:
            self._check_size(batch_size)
            self._train(passes, batch_size, inputs, class_weight, choice)
        except Exception as error:  # (one that is a model's comes again when it is trained by itself)
            # (for this batch size: less may do)
            choice.refused = {**choice.refused, TOGETHER: refusal(error)}
            self.group.drop()
        else:
            self.trained, self.compilations = True, self.kernels.compilations - before

    def report(self):
        """What Chosen.train gives of the last pass, of the trained state that the model was put into."""
        return {**self.kernels.metrics.report(self.rows), "kernel": TOGETHER}

    def _check_size(self, batch_size):
        """Raises MemoryError where so many are too large; that depends on the model and the batch size alone."""
        state = sum(array.nbytes for array in keras.tree.flatten(self.states[0]))
        wanted = COPIES * self.group.most * (state + batch_size * row_bytes(self.kernels.layers))
        if wanted > ENOUGH:
            raise MemoryError(f"{self.group.most} of this model at once may take {wanted >> 20} MB")

    def _train(self, passes, batch_size, inputs, class_weight, choice):
        self.group.begin(self.states)
        for columns in passes:
            if not self.kernels.plain.trains:
                self.kernels.plain.begin(tuple(c[:batch_size] for c in columns), inputs, class_weight)
            self.group.reset()
            self._pass(weighted(tuple(c[: self.rows] for c in columns), inputs, class_weight), batch_size, choice)
        self.states = self.group.end()[: len(self.states)]

    def _pass(self, data, batch_size, choice):
        """Train on all rows of `data`, the last batch of which may be short."""
        group, full, done, count = self.group, self.rows // batch_size, 0, len(self.states)
        if full and not group.knows(data, batch_size):
            choice.tried(TOGETHER, None, group.compile(data, batch_size))
        while done < full:
            if TOGETHER in choice.batch_seconds:
                seconds = group.train(data, batch_size, done, full, count * choice.batch_seconds[TOGETHER])
                choice.timed(TOGETHER, seconds / count)
                break
            now, seconds = group.probe(data, batch_size, done, full)
            choice.tried(TOGETHER, seconds and seconds / count, choice.compile_seconds.get(TOGETHER, 0.0))
            done += now
        if self.rows > full * batch_size:
            group.step(keras.tree.map_structure(lambda a: a[full * batch_size :], data))
