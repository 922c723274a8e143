"""The tests of every engine, for segments on one server, on nodes of Citus and on the segments of a Greenplum."""

import pytest

from support.engines import CitusNodes, EngineConformance, GreenplumCluster, OneServer, prepared


@pytest.fixture(
    scope="module", params=[OneServer, CitusNodes, GreenplumCluster], ids=["postgresql", "citus", "greenplum"]
)
def engine(server, request):
    yield from prepared(request.param(server))


class TestEngines(EngineConformance):
    pass
