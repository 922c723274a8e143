"""The tests of every engine, for segments on this server and on others (other engines: thorough/engines/test_engines.py)."""

import pytest

from support.engines import EngineConformance, SeveralServers, prepared


@pytest.fixture(scope="module", params=[SeveralServers], ids=["postgres_fdw"])
def engine(server, request):
    yield from prepared(request.param(server))


class TestEngines(EngineConformance):
    # long, and hardly another path between servers than the rest: thorough/engines/test_engines.py has them
    test_children_inherit_the_weights_of_parents_from_wherever_these_are = None
    test_a_super_net_hops_and_its_members_have_scores = None
    test_a_session_that_dies_while_it_predicts_is_replaced = None
    test_what_a_killed_caller_leaves_is_dropped_by_the_next_call = None
