"""PyTorch's errors that say that memory has ended."""

import contextlib

import torch

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)


@contextlib.contextmanager
def memory_errors():
    """Within it a lack of the processors' memory is a MemoryError: PyTorch says it in words alone."""
    try:
        yield
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise MemoryError(str(error)) from error
