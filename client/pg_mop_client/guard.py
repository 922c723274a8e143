"""Access to the live page: ASGI middleware that requires the page's token, and requests from the page itself."""

import hmac
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}

MOST_PATH = 200  # characters
EMPTY = re.compile(r"/|/compare|/models?|/run/\d+|/static/[\w.]+")  # paths of the page without data of the database


class Guard:
    """Accepts a request that names this page as its host, has no other origin, and has the token in x-mop-token.

    The token is not in a cookie, because a browser sends a cookie to all ports of the machine, and so to other users'
    servers. In the address it stands behind the #, a part that the browser does not send.
    """

    def __init__(self, app: Any, token: str, port: int) -> None:
        self.app, self.token = app, token.encode()
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # (no web sockets)
        given: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        problem = self._problem(scope, given)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        if problem is None:
            return await self.app(scope, receive, guarded)
        body = problem.encode()
        await guarded(
            {
                "type": "http.response.start",
                "status": 403,
                "headers": [
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await guarded({"type": "http.response.body", "body": body})
        return None

    def _problem(self, scope: Mapping[str, Any], given: Mapping[str, list[str]]) -> str | None:
        """The reason to refuse a request, or None; `given` are its headers."""
        if len(scope["path"]) > MOST_PATH:
            return "this page has no path of that length"
        host = given.get("host", [])
        if len(host) != 1 or host[0] not in self.hosts:
            return "this page is not of that host"
        if any(origin != f"http://{host[0]}" for origin in given.get("origin", [])):
            return "another origin may not call this page"
        if any(site not in ("same-origin", "none") for site in given.get("sec-fetch-site", [])) and not (
            scope["method"] == "GET" and given.get("sec-fetch-mode") == ["navigate"]
        ):
            return "another site may not call this page"  # (but another site may link to the page)
        if scope["method"] == "GET" and EMPTY.fullmatch(scope["path"]):
            return None
        if not any(hmac.compare_digest(token.encode("latin-1"), self.token) for token in given.get("x-mop-token", [])):
            return "this page needs its token: open the address that mop dashboard has printed"
        return None
