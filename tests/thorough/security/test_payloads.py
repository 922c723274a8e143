"""Each payload that security/test_attacks.py expects to be refused does harm where nothing refuses it."""

import subprocess
import sys

from support import payloads


def test_every_payload_works_where_nobody_guards(tmp_path):
    done = subprocess.run(
        [sys.executable, payloads.__file__, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = {name for group, _ in payloads.GROUPS.values() for name in group}
    assert names <= set(done.stdout.splitlines()), done.stdout
