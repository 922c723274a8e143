"""The relay: a process between a backend and its trainer on a Ray cluster.

`python -m mop_udf.pool.relay BACKEND LIFE SINCE IDLE_MS CONTROL ADDRESS GPUS CPUS SECONDS ARGUMENTS...`: the first four and
ARGUMENTS are the arguments of mop_udf.training.trainer; CONTROL is the socket to the pool (pool.py), or -1. An actor that
holds the GPUs starts the trainer from the sources of this package. The trainer's stdin and stdout are a connection to the
relay, so frames, including rows, pass unchanged, and Ray's object store is not used. If the actor, its node or the relay
ends, the trainer ends, too. When a lease ends, the relay has the trainer forget it, and both wait in the pool for the next
lease.

`python -m mop_udf.pool.relay capacity ADDRESS GPUS CPUS` prints the number of such trainers that the cluster can hold.
"""

from __future__ import annotations

import io
import os
import secrets
import select
import socket
import sys
import threading
import time
import zipfile
from types import ModuleType
from typing import Any, NoReturn

import mop_udf
from mop_udf.pool.channel import Channel, ChannelClosed
from mop_udf.pool.child_process import die_with_pipe, prefer_oom_kill
from mop_udf.pool.lease import Lease

CONNECT_SECONDS = 40
CHUNK = 1 << 20
RESET_SECONDS = 2  # within which an idle trainer answers
KEPT_ALIVE = (  # a lost machine sends nothing: these options end its connection after a minute
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Host:
    """The Ray actor. Ray copies the class to the node by value, without the rest of this package."""

    def start(
        self,
        sources: bytes,
        environment: dict[str, str],
        arguments: list[str],
        token: bytes,
        kept_alive: tuple[tuple[int, int, int], ...],
    ) -> tuple[str, int]:
        """Start the trainer at a connection that begins with `token`: (address, port) to connect to."""
        import secrets
        import socket
        import threading

        import ray

        address = ray.util.get_node_ip_address()
        listener = socket.create_server(("", 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.settimeout(30)

        def accepted() -> socket.socket:
            while True:
                connection, _ = listener.accept()
                connection.settimeout(10)
                try:
                    given = b""
                    while len(given) < len(token) and (more := connection.recv(len(token) - len(given))):
                        given += more
                except OSError:
                    given = b""
                if secrets.compare_digest(given, token):
                    connection.settimeout(None)
                    return connection
                connection.close()

        def host() -> None:
            import os
            import select
            import subprocess
            import sys
            import tempfile

            try:
                connection = accepted()
                listener.close()
                for level, option, value in kept_alive:
                    connection.setsockopt(level, option, value)
                with tempfile.NamedTemporaryFile(suffix=".zip") as file:
                    file.write(sources)
                    file.flush()
                    life, ours = os.pipe()  # the end of this process closes `ours`
                    program = (
                        "import sys; sys.path.insert(0, sys.argv.pop(1)); from mop_udf.training import trainer; "
                        "trainer.live(*map(int, sys.argv[1:9]))"
                    )
                    # variables of the node that locate its programs and its GPUs
                    own = {
                        name: value
                        for name, value in os.environ.items()
                        if name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") or name.startswith(("CUDA_", "NVIDIA_"))
                    }
                    trainer = subprocess.Popen(
                        [sys.executable, "-I", "-B", "-c", program, file.name, "0", str(life), *arguments],
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                        pass_fds=[life],
                        env={**own, **environment},
                    )
                    gone = select.poll()
                    gone.register(connection, select.POLLRDHUP)
                    while trainer.poll() is None:
                        if gone.poll(500):  # a computing trainer would notice only afterwards
                            trainer.kill()
            finally:
                os._exit(0)  # Ray gets the actor's GPUs and CPUs back at once

        threading.Thread(target=host).start()
        return address, listener.getsockname()[1]


def sources() -> bytes:
    """This package as a zip file (bytes) that Python can import from."""
    folder, packed = os.path.dirname(os.path.abspath(mop_udf.__file__)), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, _, files in os.walk(folder):
            for name in files:
                if name.endswith(".py"):
                    full = os.path.join(path, name)
                    archive.write(full, os.path.relpath(full, os.path.dirname(folder)))
    return packed.getvalue()


def reach(address: str) -> ModuleType:
    """Connect to the cluster: the module ray. Where that fails, prints a sentence and ends this process."""
    late = threading.Timer(CONNECT_SECONDS, end, [f"Ray at {address} has not answered for {CONNECT_SECONDS} s"])
    late.daemon = True
    late.start()
    try:
        import ray

        ray.init(address, logging_level="ERROR", log_to_driver=False)
    except Exception as error:
        end(f"Ray at {address} cannot be reached: {type(error).__name__}: {str(error)[:500]}")
    late.cancel()
    return ray


def capacity(address: str, gpus: float, cpus: float) -> NoReturn:
    """Print the number of trainers, each with so many GPUs and CPUs, that the idle nodes could hold."""
    ray = reach(address)
    fits = [
        min([int(node["Resources"].get(name, 0) / wanted) for name, wanted in (("GPU", gpus), ("CPU", cpus)) if wanted])
        for node in ray.nodes()
        if node["Alive"]
    ]
    os.write(1, str(sum(fits)).encode())
    os._exit(0)


def connect(address: str, gpus: float, cpus: float, seconds: float, arguments: list[str]) -> tuple[socket.socket, Any]:
    """(socket to a new trainer on the cluster, its actor); the actor must be kept as long as the trainer is to live.

    Where that fails, prints a sentence and ends this process.
    """
    ray = reach(address)
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "CUDA_VISIBLE_DEVICES")}
    if not gpus:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    token = secrets.token_bytes(32)
    try:
        actor = ray.remote(Host).options(num_gpus=gpus, num_cpus=cpus).remote()
        target = ray.get(actor.start.remote(sources(), environment, arguments, token, KEPT_ALIVE), timeout=seconds)
        connection = socket.create_connection(target, CONNECT_SECONDS)
    except ray.exceptions.GetTimeoutError:
        end(f"Ray at {address} has had no capacity for {gpus:g} GPUs and {cpus:g} CPUs for {seconds:g} s", True)
    except OSError as error:
        end(f"the node {target[0]} of Ray at {address} cannot be reached: {error}", True)
    except Exception as error:
        end(f"Ray at {address} cannot start a trainer: {type(error).__name__}: {str(error)[:500]}", True)
    connection.settimeout(None)
    for level, option, value in KEPT_ALIVE:
        connection.setsockopt(level, option, value)
    connection.sendall(token)
    return connection, actor


def end(sentence: str, leave: bool = False) -> NoReturn:
    """Print a sentence and end this process.

    `leave`: disconnect from the cluster, for at most 10 s; without that, Ray frees the resources after half a minute.
    """
    os.write(2, f"{sentence}\n".encode())
    if leave:
        import ray

        late = threading.Timer(10, os._exit, [1])
        late.daemon = True
        late.start()
        ray.shutdown()
    os._exit(1)


def pump(lease: Lease, connection: socket.socket) -> bool:
    """Forward data in both directions until one side closes: True if that is the backend. Raises OSError.

    While data is under way, this process dies with its backend.
    """
    ends = {lease.read_fd: connection.fileno(), connection.fileno(): lease.write_fd}
    while True:
        for side in select.select(list(ends), [], [])[0]:
            data = memoryview(os.read(side, CHUNK))
            if not data:
                return side == lease.read_fd
            with lease.at_work():
                while data:
                    data = data[os.write(ends[side], data) :]


def reset(connection: socket.socket) -> dict[str, Any] | None:
    """What the trainer keeps after its lease (see pool.Member). None where it may not be leased again, or still works on
    a request."""
    until = time.monotonic() + RESET_SECONDS

    def check() -> None:
        if time.monotonic() > until:
            raise TimeoutError

    channel = Channel(connection.fileno(), connection.fileno(), check)
    try:
        channel.send({"op": "reset"})
        return channel.receive_header().get("held")
    except (OSError, ValueError, ChannelClosed):
        return None
    finally:
        os.set_blocking(connection.fileno(), True)


def main(
    backend: str,
    life: str,
    since: str,
    idle_ms: str,
    control: str,
    address: str,
    gpus: str,
    cpus: str,
    seconds: str,
    *arguments: str,
) -> NoReturn:
    """Run as the relay of the process that holds the writing end of the pipe `life`; ends this process."""
    die_with_pipe(int(life))
    prefer_oom_kill()
    number = int(control)
    shown = number, address, gpus, cpus, seconds, *arguments
    lease = Lease(int(life), None if number < 0 else number, int(idle_ms), shown, "mop_udf.pool.relay")
    connection, _actor = connect(address, float(gpus), float(cpus), float(seconds), ["0", "0", *arguments])
    lease.at_rest()
    try:
        while pump(lease, connection):
            lease.release()
            held = reset(connection) if lease.is_renewable() else None
            if held is None:
                break
            lease.renew(held)
        else:
            end("the trainer on Ray, its actor or its node has gone", leave=True)
    except OSError as error:
        end(f"the connection to the trainer on Ray was lost: {error}", leave=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "capacity":
        capacity(sys.argv[2], *map(float, sys.argv[3:]))
    main(*sys.argv[1:])
