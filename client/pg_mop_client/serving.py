"""mop dashboard's web server: on 127.0.0.1, for this user alone."""

import html
import pathlib
import secrets
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable

import sqlalchemy
import uvicorn

from pg_mop_client.dashboard import Dashboard
from pg_mop_client.errors import ClientError


def serve(
    engine: sqlalchemy.Engine, schema: str, port: int = 0, browser: bool = True, say: Callable[..., None] = print
) -> None:
    """Serve the page until an interrupt. `port` 0: any free port. Raises ClientError if the port is in use."""
    token = secrets.token_urlsafe(32)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("127.0.0.1", port))
        except OSError as error:
            raise ClientError(
                f"port {port} of 127.0.0.1 is not available: {error.strerror}",
                hint="Without --port, the page uses a free port.",
            ) from None
        own.listen()  # (clients can connect as soon as the address is printed)
        port = own.getsockname()[1]
        app = Dashboard(engine, schema).app(port, token)
        # (keep-alive is short, so that Ctrl-C ends it)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        address = f"http://127.0.0.1:{port}/#token={token}"
        say(f"{address}\nCtrl-C ends it.", flush=True)
        # (uvicorn ends by the same signal after its last answer)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with tempfile.TemporaryDirectory(prefix="pg_mop_") as directory:  # (its mode is 0700)
            if browser and not webbrowser.open(_redirect(address, directory)):
                print("no browser could be opened: open the address", file=sys.stderr)
            server.run(sockets=[own])


def _redirect(address: str, directory: str) -> str:
    """The URI of a file that redirects to the page.

    The address has the token, and all users of the machine can read the arguments of a process.
    """
    file = pathlib.Path(directory, "page.html")
    file.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><title>pg_mop</title>'
        f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">',
        encoding="utf-8",
    )
    return file.as_uri()
