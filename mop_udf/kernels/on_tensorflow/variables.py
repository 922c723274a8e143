"""A model's variables, read and set together: each by itself is a call into TensorFlow of 0.1 to 0.2 ms, which is more
than a small model trains."""

import math

import numpy as np
import tensorflow as tf

PATIENCE = 30         # times that they are set before what does it at once is compiled, which takes as long
FEWEST = 6            # variables for which that is of use
MOST_BYTES = 4 << 20  # of all: with more, the copy that it makes takes longer than the calls


class Variables:
    """Keras variables whose values come and go as lists of arrays, in order."""

    def __init__(self, variables):
        self.variables = list(variables)
        self.shapes = [tuple(v.shape) for v in self.variables]
        self.kinds = {}  # dtype -> places of the variables that have it
        for place, variable in enumerate(self.variables):
            self.kinds.setdefault(variable.dtype, []).append(place)
        size = sum(v.value.dtype.size * math.prod(shape) for v, shape in zip(self.variables, self.shapes))
        # (functions of its own: TensorFlow would warn of one that is traced for each model)
        self._put, self._take = tf.function(self._put_all), tf.function(self._take_all)
        self._times = 0 if len(self.variables) >= FEWEST and size <= MOST_BYTES else -math.inf

    def put(self, arrays):
        """Set the variables to arrays of their shapes."""
        self._times += 1
        if self._times <= PATIENCE or any(
                array.dtype.name != variable.dtype for variable, array in zip(self.variables, arrays)):
            for variable, array in zip(self.variables, arrays):
                variable.assign(array)
        else:
            self._put([tf.convert_to_tensor(np.concatenate([arrays[place].reshape(-1) for place in places]))
                       for places in self.kinds.values()])

    def take(self):
        """The variables' values; these may be their own memory: good until the next step."""
        if self._times <= PATIENCE:
            return [np.asarray(variable.value) for variable in self.variables]
        found = [None] * len(self.variables)
        for places, flat in zip(self.kinds.values(), self._take()):
            flat, at = np.asarray(flat), 0
            for place in places:
                end = at + math.prod(self.shapes[place])
                found[place], at = flat[at:end].reshape(self.shapes[place]), end
        return found

    def _put_all(self, flats):
        for places, flat in zip(self.kinds.values(), flats):
            parts = tf.split(flat, [math.prod(self.shapes[place]) for place in places])
            for place, part in zip(places, parts):
                self.variables[place].value.assign(tf.reshape(part, self.shapes[place]))

    def _take_all(self):
        return [tf.concat([tf.reshape(self.variables[place].value, [-1]) for place in places], 0)
                for places in self.kinds.values()]
