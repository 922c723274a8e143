"""The soak for a minute: runs on one server under random faults. `make soak` runs it for longer, with other seeds."""

import subprocess
import sys

from support.cluster import ROOT


def test_random_faults_lose_no_unit_and_change_no_byte():
    soak = [sys.executable, "-B", ROOT / "tests" / "soak" / "soak.py", "--seconds", "60", "--seed", "7"]
    done = subprocess.run(soak, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "found: nothing" in done.stdout
