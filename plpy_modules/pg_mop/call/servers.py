"""The servers that a run uses: the coordinator's own, and the other servers that hold segments."""

from dataclasses import dataclass
from typing import Any

from pg_mop.connections.targets import Target


@dataclass
class Server:
    """A server, with the number of the run there: the run itself on the coordinator's server, a remote run elsewhere.

    `name`: the foreign server's; None: the coordinator's own server, whose catalog decides. `schema`: the extension's
    schema there, quoted. `info`: the server's description of itself (api/runs/servers.py).
    """

    name: str | None
    target: Target
    catalog: Any  # a Catalog, or a RemoteCatalog
    run_id: int | None
    schema: str
    info: dict[str, Any]
    silent: bool = False  # it was away, or did not answer, when it was last asked

    @property
    def home(self) -> bool:
        """True for the coordinator's own server."""
        return self.name is None
