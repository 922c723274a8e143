"""How much memory a trainer needs, by the arithmetic of its net. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PROCESS_BYTES = 480 << 20  # resident, of a trainer that has imported TensorFlow and made a small net ready
STATE_COPIES, ROW_COPIES = 3, 3
CONTEXT_BYTES = 600 << 20  # of a GPU: its driver's context and the libraries' buffers (a guess: not tried on a GPU)


@dataclass(frozen=True)
class Need:
    """Bytes of a trainer that trains a net, apart from the process: of the net's `weights`, of the `optimizer` (with the
    gradients, which are as large as the weights), of the `activations` of a mini-batch, and of the `rows` that it keeps."""

    weights: int = 0
    optimizer: int = 0
    activations: int = 0
    rows: int = 0

    @property
    def in_main_memory(self) -> int:
        """Bytes of the process. A state is in it as variables, as the values that training starts with, and as the bytes that
        come and go. Rows are in it as arrays, as the framework's tensors, and as the pieces that XLA's loop gets."""
        return (
            PROCESS_BYTES + STATE_COPIES * (self.weights + self.optimizer) + self.activations + ROW_COPIES * self.rows
        )

    @property
    def on_gpu(self) -> int:
        """Bytes of a GPU's memory. A training step has the old variables and the new ones; rows stay in main memory."""
        return self.on_each_of(1.0)

    def on_each_of(self, share: float, context: int = CONTEXT_BYTES) -> int:
        """Bytes of the memory of each device that trains the net together with others. `share`: of the variables, what each
        device has (kernels/layout.py); `context`: bytes that a device takes for itself. Activations count as a whole: XLA
        decides which of them it divides."""
        return context + int(2 * (self.weights + self.optimizer) * share) + self.activations

    def most(self, other: Need) -> Need:
        """The larger of each."""
        return Need(
            max(self.weights, other.weights),
            max(self.optimizer, other.optimizer),
            max(self.activations, other.activations),
            max(self.rows, other.rows),
        )
