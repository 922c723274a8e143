"""What every engine keeps to: the same calls, and the same results, wherever the segments are."""

import pytest

from support.engines import CitusNodes, EngineConformance, GreenplumCluster, OneServer, SeveralServers, prepare


@pytest.fixture(
    scope="module",
    params=[OneServer, SeveralServers, CitusNodes, GreenplumCluster],
    ids=["postgresql", "postgres_fdw", "citus", "greenplum"],
)
def engine(server, request):
    made = request.param(server)
    prepare(made)
    yield made
    made.close()


class TestEngines(EngineConformance):
    pass
