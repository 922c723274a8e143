"""The base of the classes of tests that every implementation of an interface passes."""

from collections.abc import Callable, Collection, Mapping
from typing import Any


class Conformance:
    """The tests of an interface, with an implementation as the parameter `kind`.

    `cases`: {implementation: what its tests need}, `registered`: implementations that must be among them. A file of tests
    has a subclass, whose name begins with Test. A new implementation is an entry of `cases`, or a subclass:

        class TestMine(ProcedureConformance):
            cases = {Mine: {"iterations": 4}}
    """

    cases: Mapping[Any, Any] = {}
    registered: Collection[Any] = ()
    title: Callable[[Any], str] = staticmethod(lambda kind: getattr(kind, "name", None) or str(kind))

    def pytest_generate_tests(self, metafunc):
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", list(self.cases), ids=self.title)

    def test_each_that_is_registered_has_its_case(self):
        known = {kind for kind_of_tests in type(self).__mro__ for kind in vars(kind_of_tests).get("cases", ())}
        assert self.cases and set(self.registered) <= known
