"""A model's variables, read and set one by one, for frameworks where a call for each costs little."""

from typing import Any

import numpy as np


class Variables:
    """Keras variables, read and set as lists of arrays, in order."""

    def __init__(self, variables: Any) -> None:
        self.variables = list(variables)

    def put(self, arrays: Any) -> None:
        """Set the variables to arrays of their shapes, possibly of another framework."""
        for variable, array in zip(self.variables, arrays):
            variable.assign(np.array(array))  # a copy: the framework may keep this memory

    def take(self) -> Any:
        """The variables' values."""
        return [np.asarray(variable) for variable in self.variables]
