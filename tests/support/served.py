"""The live page (`mop dashboard`) as a process of its own, for tests of what it tells, does and shows."""

import http.client
import json
import re
import subprocess
import sys

import pytest

ATTACK = "<img src=x onerror='window.attacked=1'></script><script>window.attacked=1</script>"


class Served:
    """`mop dashboard` as a process of its own, and calls of it."""

    def __init__(self, uri, options=("--no-browser",), env=None, errors=None):
        """`uri`: of the database, with the role; `options`: of the command; `errors`: a file for what it prints there.
        Skips the test where a package is missing."""
        for needed in ("starlette", "uvicorn"):
            pytest.importorskip(needed, reason=f"not run: mop dashboard needs {needed}")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from pg_mop_client.command import main; sys.exit(main())",
                "-d",
                uri,
                "dashboard",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=env,
        )
        self.address = self.process.stdout.readline().strip()
        port, self.token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{40,})", self.address).groups()
        self.port = int(port)
        self.shown = {"X-Mop-Token": self.token}

    def call(self, path, method="GET", headers=None, body=None, raw=False):
        """(status, headers, text, or bytes if `raw`); `headers` None: with the token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = self.shown if headers is None else headers
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        content = answer.read()
        found = answer.status, dict(answer.getheaders()), content if raw else content.decode()
        connection.close()
        return found

    def json(self, path):
        status, _, text = self.call(path)
        assert status == 200, text
        return json.loads(text)

    def post(self, path, **given):
        status, _, text = self.call(path, "POST", self.shown, json.dumps(given))
        return status, json.loads(text)

    def end(self):
        self.process.terminate()
        self.process.wait(120)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def page(db, made):
    """The page of the superuser, once the module's fixture `made` has made what it shows."""
    served = Served(db.uri())
    yield served
    served.end()
