"""The plain kernel on PyTorch: one Keras step per mini-batch, as in `model.train_on_batch`."""

from typing import Any

from mop_udf.kernels import plain
from mop_udf.kernels.on_torch.memory import memory_errors
from mop_udf.kernels.on_torch.scalars import follow


class Plain(plain.Plain):
    def run(self, data: Any) -> None:
        follow(self.model.optimizer)
        with memory_errors():
            self.model.train_step(data)
