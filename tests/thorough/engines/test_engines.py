"""What every engine keeps to, with segments on one server, on nodes of Citus and on a Greenplum's segments."""

import pytest

from support.engines import CitusNodes, EngineConformance, GreenplumCluster, OneServer, prepared


@pytest.fixture(
    scope="module", params=[OneServer, CitusNodes, GreenplumCluster], ids=["postgresql", "citus", "greenplum"]
)
def engine(server, request):
    yield from prepared(request.param(server))


class TestEngines(EngineConformance):
    pass
