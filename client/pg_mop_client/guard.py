"""Who may call the live page: who has its token, from the page itself. ASGI middleware, before everything else."""

import hmac
import re

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
EMPTY = re.compile(r"/|/compare|/run/\d+|/static/[\w.]+")  # the page without anything of the database


class Guard:
    """Lets a request through that names this page as its host, comes from nowhere else, and has the token in the
    header x-mop-token. (No cookie has it: a browser would send that to all ports of the machine, and so to others'
    servers. Nor has the address, but for the part behind #, which stays in the browser.)"""

    def __init__(self, app, token, port):
        self.app, self.token = app, token.encode()
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # (no web sockets)
        given = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        problem = self._problem(scope, given)

        async def guarded(message):
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

    def _problem(self, scope, given):
        """Why a request is refused; None where it is not."""
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
            return "another site may not call this page"  # (but may link to it)
        if scope["method"] == "GET" and EMPTY.fullmatch(scope["path"]):
            return None
        if not any(hmac.compare_digest(token.encode("latin-1"), self.token) for token in given.get("x-mop-token", [])):
            return "this page needs its token: open the address that mop dashboard has printed"
        return None
