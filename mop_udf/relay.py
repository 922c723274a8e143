"""A trainer on a Ray cluster: this process stands between it and the backend.

`python -m mop_udf.relay BACKEND LIFE ADDRESS GPUS CPUS SECONDS ARGUMENTS...`: BACKEND and LIFE as of mop_udf.trainer,
whose further arguments these ARGUMENTS are. An actor, to which Ray gives the GPUs, starts the very same trainer, of
these very sources, with a connection to here as its stdin and stdout; so frames pass as they are, rows among them, and
nothing goes through Ray's object store. Whichever of actor, node and this process goes, the trainer goes, too.
"""

import io
import os
import secrets
import select
import socket
import sys
import zipfile

from mop_udf.trainer import die_with, first_to_go, keep_stdout

CONNECT_SECONDS = 20
CHUNK = 1 << 20


class Host:
    """The Ray actor. Ray brings it to its node by value: it knows nothing of this package."""

    def start(self, sources, environment, arguments, token):
        """Wait for a connection that begins with `token`, and be its trainer's host: (address, port) to connect to."""
        import secrets
        import socket
        import threading

        import ray
        listener = socket.create_server(("", 0))
        listener.settimeout(60)

        def host():
            import os
            import subprocess
            import sys
            import tempfile
            try:
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
                        break
                    connection.close()
                connection.settimeout(None)
                listener.close()
                with tempfile.NamedTemporaryFile(suffix=".zip") as file:
                    file.write(sources)
                    file.flush()
                    life, ours = os.pipe()  # ours is closed by the end of this process
                    program = ("import sys; sys.path.insert(0, sys.argv.pop(1)); from mop_udf import trainer; "
                               "trainer.live(*map(int, sys.argv[1:8]))")
                    subprocess.run([sys.executable, "-B", "-c", program, file.name, "0", str(life), *arguments],
                                   stdin=connection, stdout=connection, pass_fds=[life],
                                   env={**os.environ, **environment})
            finally:
                os._exit(0)  # what Ray has given it is free now

        threading.Thread(target=host).start()
        return ray.util.get_node_ip_address(), listener.getsockname()[1]


def sources():
    """This package as a zip file (bytes), which Python imports from."""
    folder, packed = os.path.dirname(os.path.abspath(__file__)), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, _, files in os.walk(folder):
            for name in files:
                if name.endswith(".py"):
                    full = os.path.join(path, name)
                    archive.write(full, os.path.relpath(full, os.path.dirname(folder)))
    return packed.getvalue()


def connect(address, gpus, cpus, seconds, arguments):
    """A socket to a new trainer on the cluster, and what must be kept as long as it is to live. Ends this process with
    a sentence where there is none to be had."""
    import ray
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False)
    except Exception as error:
        sys.exit(f"Ray at {address} does not answer: {error}")
    environment = {name: value for name, value in os.environ.items()
                   if name in ("KERAS_BACKEND", "OMP_NUM_THREADS") or name.startswith("TF_")}
    if not gpus:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    token = secrets.token_bytes(32)
    try:
        actor = ray.remote(Host).options(num_gpus=gpus, num_cpus=cpus).remote()
        place = ray.get(actor.start.remote(sources(), environment, arguments, token), timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        sys.exit(f"Ray at {address} has had no room for a trainer of {gpus:g} GPUs and {cpus:g} CPUs for {seconds:g} s")
    except Exception as error:
        sys.exit(f"Ray at {address} cannot start a trainer: {error}")
    try:
        connection = socket.create_connection(place, CONNECT_SECONDS)
    except OSError as error:
        sys.exit(f"the node {place[0]} of Ray at {address} cannot be reached: {error}")
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(token)
    return connection, actor


def pump(requests, answers, connection):
    """Hand on what comes, either way, until either side has gone. Raises OSError."""
    ends = {requests: connection.fileno(), connection.fileno(): answers}
    while True:
        for end in select.select(list(ends), [], [])[0]:
            data = memoryview(os.read(end, CHUNK))
            if not data:
                return end
            while data:
                data = data[os.write(ends[end], data):]


def main(backend, life, address, gpus, cpus, seconds, *arguments):
    """Be the relay of a process that has the writing end of the pipe `life`; ends this process."""
    die_with(int(life))
    first_to_go()
    requests, answers = keep_stdout()
    connection, actor = connect(address, float(gpus), float(cpus), float(seconds), list(arguments))
    try:
        if pump(requests, answers, connection) == connection.fileno():
            sys.exit("the trainer on Ray, its actor or its node has gone")
    except OSError as error:
        sys.exit(f"the connection to the trainer on Ray was lost: {error}")
    finally:
        del actor


if __name__ == "__main__":
    main(*sys.argv[1:])
