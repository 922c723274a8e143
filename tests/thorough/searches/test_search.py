"""Every search procedure, with more seeds, orders of results and interruptions than in tests/unit/test_search.py."""

from support.conformance import ProcedureConformance


class TestProceduresThoroughly(ProcedureConformance):
    seeds, orders, cuts = 5, 5, 20
