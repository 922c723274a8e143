"""The tests of every engine, for segments on this server and on others (other engines: thorough/engines/test_engines.py)."""

import pytest

from support.engines import EngineConformance, SeveralServers, prepared


@pytest.fixture(scope="module", params=[SeveralServers], ids=["postgres_fdw"])
def engine(server, request):
    yield from prepared(request.param(server))


class TestEngines(EngineConformance):
    pass
