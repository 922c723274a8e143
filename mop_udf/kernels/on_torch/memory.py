"""PyTorch's out-of-memory errors."""

import contextlib
from collections.abc import Iterator

import torch

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """A context that turns a lack of main memory into a MemoryError; PyTorch only raises a RuntimeError with a text."""
    try:
        yield
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise MemoryError(str(error)) from error
