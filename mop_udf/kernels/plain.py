"""The base of plain kernels, for frameworks where Keras can make a model's variables without training."""

from typing import Any

from mop_udf.kernels.batches import weighted


class Plain:
    """Trains one compiled Keras model, batch by batch. A subclass implements `run(data)`."""

    def __init__(self, model: Any, own_class: Any = None) -> None:
        """`own_class`: see TunedKernels; these frameworks do not need it."""
        self.model, self.trains = model, False  # trains: Keras has made all variables
        self.steps: dict[Any, Any] = {}  # compiled steps, by the shapes of their batch

    def step(self, batch: Any, inputs: Any, class_weight: Any, full: bool) -> None:
        """Train on one batch; `full`: it has the full number of rows."""
        if not self.trains:
            self.begin(batch, inputs, class_weight)
        self.run(weighted(batch, inputs, len(self.model.outputs), class_weight))

    def begin(self, batch: Any, inputs: Any, class_weight: Any) -> None:
        """Let Keras make the variables of losses and metrics, without training."""
        self.model._symbolic_build(data_batch=weighted(batch, inputs, len(self.model.outputs), class_weight))
        self.trains = True

    def run(self, data: Any) -> None:
        """Train on (x, y) or (x, y, weight of each row) by one step of Keras."""
        raise NotImplementedError
