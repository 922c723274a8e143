"""Run pytest and note its outcomes for tools/suite.py: noted_pytest.py FILE [OPTION ...]."""

import json
import pathlib
import sys

import pytest


class Notes:
    """A plugin of pytest: it writes into a file which tests have failed, which passed, and why the run has not ended."""

    def __init__(self, path):
        self.path, self.outcomes, self.unfinished = path, {}, None

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif report.when == "call" and report.passed:
            self.outcomes.setdefault(report.nodeid, "passed")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        if error:
            self.unfinished = f"the worker {node.gateway.id} of pytest died"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        stopped = session.shouldfail or session.shouldstop
        # (as arguments of the next run, whose working directory may be another)
        outcomes = {f"{session.config.rootpath}/{name}": outcome for name, outcome in self.outcomes.items()}
        self.path.write_text(json.dumps([outcomes, self.unfinished or (str(stopped) if stopped else None)]))


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[2:], plugins=[Notes(pathlib.Path(sys.argv[1]))]))
