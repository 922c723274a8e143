"""The classes of tests suit what is not registered: the examples in the docstrings of the interfaces keep the promises."""

import doctest

from pg_mop.columns import base as of_columns
from pg_mop.schedule import base as of_schedulers
from pg_mop.search import base as of_procedures
from pg_mop.search import sampler as of_samplers
from support.conformance import ColumnConformance, ProcedureConformance, SamplerConformance, SchedulerConformance
from support.conformance.columns import Packed


def example(module, name):
    """The class of that name in the examples of a module."""
    space = dict(vars(module))
    for test in doctest.DocTestFinder(recurse=True).find(module):
        for part in test.examples:
            if name not in space:
                exec(part.source, space)
    return space[name]


Log = example(of_columns, "Log")


class TestColumn(ColumnConformance):
    cases = {Log: Packed(Log("price", {"shape": [1]}), [[1, 10, 100]], [0], 1)}


class TestProcedure(ProcedureConformance):
    cases = {example(of_procedures, "BestOfSome"): {"trials": 12, "iterations": 5}}
    test_a_space_of_one_configuration_is_enough = None  # (for brevity the example takes a large one)


class TestSampler(SamplerConformance):
    cases = {"last first": example(of_samplers, "LastFirst")}
    in_order = ("last first",)


class TestScheduler(SchedulerConformance):
    cases = {"first eligible": example(of_schedulers, "FirstEligible")}
    in_lockstep = without_chance = ("first eligible",)
