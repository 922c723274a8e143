"""The tests of every engine: segments on one server, on several, on nodes of Citus and on those of a Greenplum."""

import pytest

from support.engines import CitusNodes, EngineConformance, GreenplumCluster, OneServer, SeveralServers, prepared


@pytest.fixture(
    scope="module",
    params=[OneServer, SeveralServers, CitusNodes, GreenplumCluster],
    ids=["postgresql", "postgres_fdw", "citus", "greenplum"],
)
def engine(server, request):
    yield from prepared(request.param(server))


class TestEngines(EngineConformance):
    pass
