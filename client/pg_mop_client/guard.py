"""Who may call the live page: who has its token, from the page itself. ASGI middleware, before everything else."""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
HEADERS = {"content-security-policy": POLICY, "cache-control": "no-store", "x-content-type-options": "nosniff",
           "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin",
           "cross-origin-resource-policy": "same-origin", "x-frame-options": "DENY"}


class Guard:
    """Lets a request through that names this page as its host, comes from nowhere else, and has the token: in the
    cookie that the first visit sets or in the address, and where it changes something in the header x-mop-token."""

    def __init__(self, app, token, port):
        self.app, self.token = app, token
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.cookie = f"mop_{port}"  # (cookies are one host's, whatever the port)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # (no web sockets)
        given = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        problem = self._problem(scope, given)
        extra = dict(HEADERS)
        if problem is None and self._same(self._asked(scope)):
            extra["set-cookie"] = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"

        async def guarded(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
            await send(message)

        if problem is None:
            return await self.app(scope, receive, guarded)
        body = problem.encode()
        await guarded({"type": "http.response.start", "status": 403, "headers": [
            (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]})
        await guarded({"type": "http.response.body", "body": body})

    def _problem(self, scope, given):
        """Why a request is refused; None where it is not."""
        host = given.get("host", [])
        if len(host) != 1 or host[0] not in self.hosts:
            return "this page is not of that host"
        if any(origin != f"http://{host[0]}" for origin in given.get("origin", [])):
            return "another origin may not call this page"
        if any(site not in ("same-origin", "none") for site in given.get("sec-fetch-site", [])) and not (
                scope["method"] == "GET" and given.get("sec-fetch-mode") == ["navigate"]):
            return "another site may not call this page"  # (but may link to it)
        if scope["method"] in ("GET", "HEAD"):
            shown = [*self._cookies(given), self._asked(scope)]
        else:
            shown = given.get("x-mop-token", [])
        if not any(self._same(token) for token in shown):
            return "this page needs its token: open the address that mop dashboard has printed"
        return None

    def _cookies(self, given):
        try:
            read = SimpleCookie("; ".join(given.get("cookie", [])))
        except CookieError:
            return []
        return [read[self.cookie].value] if self.cookie in read else []

    @staticmethod
    def _asked(scope):
        return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] if scope["path"] == "/" else ""

    def _same(self, token):
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
