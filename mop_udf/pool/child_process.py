"""Processes that a backend or the fork server starts, trainers and relays: their environment and set-up.

Standard library only.
"""

import fcntl
import os
import select
import signal

F_SETSIG = 10  # Linux; Python's fcntl does not define it
PR_SET_PDEATHSIG = 1  # Linux


def die_with_pipe(life: int) -> None:
    """Let the kernel kill this process, in any state, as soon as no process holds the other end of the pipe `life`."""
    fcntl.fcntl(life, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # the other end is closed already
        os._exit(0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process, a fork of the process `parent`, as soon as that ends."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def prefer_oom_kill() -> None:
    """Make this process the first that the kernel's OOM killer ends."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("900")
    except OSError:
        pass


def take_stdio() -> tuple[int, int]:
    """Reserve stdin and stdout for frames: (read descriptor, write descriptor). Other output goes to stderr."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    return read_fd, write_fd


def part_of_gpu(millionths: int, megabytes: int | None) -> dict[str, str]:
    """The environment of a trainer that takes at most a part of its GPU's memory, which its framework enforces (`part_of`).

    JAX reads a variable of its own. `megabytes`: the part, None: the GPU's memory is unknown.
    """
    return {
        "PG_MOP_PART_OF_GPU": f"{millionths} {megabytes or 0}",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{millionths / 1e6:.6f}",
    }


def among_devices(count: int, first_gpu: int | None, megabytes: int | None) -> dict[str, str]:
    """The environment of a trainer that divides each model among several devices (JAX alone does): of the GPUs from `first_gpu`
    on, or of the processor. `megabytes`: the memory that each device of a processor stands for, None: any."""
    if first_gpu is not None:
        own = {"CUDA_VISIBLE_DEVICES": _numbers(first_gpu, count)}
    else:
        own = {} if count == 1 else {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    return {**own, "PG_MOP_DIVIDED_BY": str(count), **({"PG_MOP_DEVICE_MB": str(megabytes)} if megabytes else {})}


def _numbers(first: int, count: int) -> str:
    return ",".join(map(str, range(first, first + count)))


def divided_by() -> int:
    """The number of devices that this trainer divides each model among."""
    return int(os.environ.get("PG_MOP_DIVIDED_BY", 1))


def device_limit() -> int | None:
    """The megabytes that each device of the processor stands for in this trainer; None: any."""
    text = os.environ.get("PG_MOP_DEVICE_MB")
    return None if text is None else int(text)


def part_of() -> tuple[float, int] | None:
    """(share, megabytes or 0) of its GPU's memory that this trainer may take; None: no limit."""
    text = os.environ.get("PG_MOP_PART_OF_GPU")
    if text is None:
        return None
    millionths, megabytes = map(int, text.split())
    return millionths / 1e6, megabytes


def environment(keras_backend: str) -> dict[str, str]:
    """The environment of every process that imports a framework; it contains nothing of the server's environment.

    (With PyTorch, importing Keras must not touch a GPU, since no fork could use it afterwards; the trainer selects the
    GPU.)
    """
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "KERAS_HOME": "/nonexistent",
        "KERAS_BACKEND": keras_backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OPENBLAS_NUM_THREADS": "1",  # of NumPy: on busy cores, its threads wait for each other most of the time
        "PYTHONHASHSEED": "0",
        "KERAS_TORCH_DEVICE": "cpu",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the numbers of nvidia-smi and NVML; CUDA's own begin with the fastest GPU
    }
