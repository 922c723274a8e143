"""The fit parameter callbacks: one TensorBoard, which writes event files where a superuser allows it."""

from typing import Any

import keras


class TensorBoard:
    """Keras' TensorBoard callback, called for the passes of one unit.

    `arguments`: of the parsed fit parameters. As in MADlib, the segment is appended to log_dir. Keras 3 ignores
    `write_grad` and `batch_size`. One step of the curves is one pass over a segment.
    """

    PASSED_ON = ("histogram_freq", "update_freq", "write_graph", "write_images")

    def __init__(self, arguments: Any, segment: Any, model: Any) -> None:
        self.callback = keras.callbacks.TensorBoard(
            log_dir=f"{arguments['log_dir']}{segment}",
            **{key: value for key, value in arguments.items() if key in self.PASSED_ON},
        )
        self.callback.set_model(model)

    def __enter__(self) -> Any:
        self.callback.on_train_begin()
        return self

    def passed(self, step: Any, logs: Any) -> None:
        """Write the loss and the metrics of pass `step` (a kernel's report)."""
        loss = {} if logs["loss"] is None else {"loss": logs["loss"]}  # (a custom training step may tell none)
        self.callback.on_epoch_end(step, {**loss, **logs["metrics"]})

    def __exit__(self, *error: BaseException) -> None:
        self.callback.on_train_end()
