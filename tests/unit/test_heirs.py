"""Trials that inherit from other trials: the plan, the board, what is taken over, the decision, and the family tree."""

from random import Random

import pytest

from mop_udf.architecture.architecture import check
from pg_mop.plan.planner import Planner
from pg_mop.plan.reuse import Known, adoptable
from pg_mop.plan.stages import Plan
from pg_mop.report import family
from pg_mop.run import inheriting
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import Unit
from pg_mop.search import create
from pg_mop.search.space import Space
from support.plans import configuration, workload
from support.workload import dense


def values(text):
    return lambda iteration: (text, "")


def parent_and_heir():
    """(a plan with a trial of two iterations and its heir of one, the stages of both)."""
    plan = Plan()
    first = plan.ask(1, "root", values("a"), 2, {2})
    (heir,) = plan.ask(2, "heir of " + first[-1].identity, values("a"), 1, {1}, None, first[-1])
    return plan, first, heir


def train(board, stage):
    for segment in (0, 1):
        unit = Unit(stage.iteration, stage.number, "train", "training", segment)
        board.start(unit)
        board.finish(unit)


def test_an_heir_begins_its_own_path_below_its_parents_last_stage():
    plan, (_, last), heir = parent_and_heir()
    assert (heir.iteration, heir.parent) == (1, last) and last.children == [heir] and plan.path(2) == [heir]
    assert last.ends == 1, "the parent's path ends with it all the same: its state stays"
    again = Plan()
    for stage in (*plan.path(1), heir):
        above = stage.parent and stage.parent.number
        again.restore(stage.number, above, stage.iteration, stage.identity, stage.parameters, 1, stage.trials)
    assert again.stages[heir.number].parent.number == last.number and len(again.path(2)) == 1


def test_an_heir_waits_until_its_parent_has_ended():
    plan, (first, last), heir = parent_and_heir()
    board = Board(plan, [0, 1])
    assert board.open("train") == [first.number]
    train(board, first)
    train(board, last)
    assert not board.open("train") and board.open("evaluate") == [last.number]
    for segment in (0, 1):
        unit = Unit(2, last.number, "evaluate", "training", segment)
        board.start(unit)
        board.finish(unit)
    assert board.open("train") == [heir.number]


def test_an_heir_of_a_trial_that_fails_fails_with_it():
    plan, (first, _), _ = parent_and_heir()
    board = Board(plan, [0, 1])
    assert board.fail(first.number) == {1, 2} and not plan.path(2) and board.done


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_trains_heirs_after_their_parents(name):
    """In a replay, and in the simulator, all trials are there from the beginning."""
    plan, first, heir = parent_and_heir()
    plan.ask(3, "another root", values("b"), 3)
    plan.ask(4, "heir of 2", values("c"), 2, {2}, None, heir)
    board, order = Board(plan, [0, 1]), []
    scheduler = SCHEDULERS[name](board, 1)
    while not board.done:
        units = [unit for worker in board.workers if (unit := scheduler.choose(worker)) is not None]
        assert units, "somebody always has work"
        for unit in units:
            board.start(unit)
        for unit in units:
            board.finish(unit)
            scheduler.finished(unit, 1.0)
            order.append((unit.stage, unit.kind))
    trained = [stage for stage, kind in order if kind == "train"]
    for stage in plan.stages.values():
        if stage.parent is not None:
            assert max(i for i, s in enumerate(trained) if s == stage.parent.number) < trained.index(stage.number)
    assert [plan.stages[n].depth for n in (first[0].number, first[1].number, heir.number)] == [1, 2, 3]


def heir_of(parent, heir, **more):
    layers = [{"layer": "out", "how": "copied", "from": "out"}]
    inherits = {"trial": parent, "iteration": 2, "identity": "0", "seed": 5, "layers": layers, **more}
    return {**configuration(heir), "member": {"parent": parent, "inherits": inherits}}


def test_the_identity_of_an_inherited_start_covers_the_parents():
    found = set()
    for rate in (0.1, 0.2):
        planner = Planner(workload(iterations=2), [configuration(1, rate), configuration(2), heir_of(1, 3)])
        planner.ask_for_all([configuration(1, rate), configuration(2), heir_of(1, 3)], ())
        fresh, heir = planner.plan.path(2)[0], planner.plan.path(3)[0]
        assert heir.parent is planner.plan.path(1)[1] and fresh.parent is None and heir.identity != fresh.identity
        told = planner.inherited(heir)
        assert told["layers"] == heir_of(1, 3)["member"]["inherits"]["layers"] and told["seed"] == 5
        assert planner.inherited(fresh) is None and planner.inherited(planner.plan.path(3)[1]) is None
        found.add(heir.identity)
    assert len(found) == 2


def test_an_heir_without_its_parent_is_taken_over_or_cannot_be_trained():
    whole = [configuration(1), heir_of(1, 2)]
    planner = Planner(workload(iterations=2), whole)
    planner.ask_for_all(whole, ())
    donor, heir = planner.plan.path(1)[1], planner.plan.path(2)
    alone = heir_of(1, 2, identity=donor.identity)
    later = Planner(workload(iterations=2), [alone])
    later.ask_for_all([alone], ())
    path = later.plan.path(2)
    assert [s.identity for s in path] == [s.identity for s in heir] and path[0].parent is None
    assert later.orphans() == [path[0]] and not planner.orphans()
    known = {
        heir[0].identity: [Known(7, heir[0].number, False, True, (7, heir[0].number), (7, donor.number))],
        heir[1].identity: [Known(7, heir[1].number, True, True, (7, heir[1].number), (7, heir[0].number))],
    }
    assert [(s.number, needed) for s, _, needed in adoptable(path, known)] == [(1, False), (2, True)]
    # with its parent, which this run trains itself, the heir is trained again: a path has one history
    assert adoptable(planner.plan.path(1) + heir, known) == []


def decided(child, parent, path=None, has=True, **more):
    plan = Plan()
    stages = plan.ask(1, "root", values("a"), 2)
    for stage in stages:
        stage.trained = True
    c = {"mst_key": 2, "model_id": 8, "architecture": check(child), "member": {"parent": 1}, **more}
    p = None if parent is None else {"mst_key": 1, "model_id": 7, "architecture": check(parent)}
    inheriting.inherit(c, p, stages if path is None else path, has, 3)
    return c["member"]


def test_what_is_inherited_is_decided_and_told():
    member = decided(dense(12), dense(8))
    assert member["inherited"] == "after iteration 2: 1 copied (out), 1 widened (hidden); the same function"
    told = member["inherits"]
    assert (told["trial"], told["iteration"], told["same"], told["fresh"]) == (1, 2, True, [])
    assert told == decided(dense(12), dense(8))["inherits"], "always the same"


def test_why_a_child_inherits_nothing_is_told():
    for member, reason in (
        (decided(dense(8), None), "nothing: the parent is a trial of an earlier run"),
        (decided(dense(8), dense(8), path=[]), "nothing: the state of the parent is gone"),
        (decided(dense(8), dense(8), has=False), "nothing: the state of the parent is gone"),
        (decided(dense(8), dense(8), weights_md5="x"), "nothing: the model has weights of its own"),
    ):
        assert member["inherited"] == reason and "inherits" not in member
    assert decided(dense(8), dense(5, inputs=9, classes=4))["inherited"] == "nothing: no layer fits"


def test_only_an_evolution_that_inherits_marks_its_children():
    space = Space.of_texts(
        [1], "{'loss': ['mse'], 'optimizer': ['SGD', 'Adam', 'Nadam']}", "{'batch_size': [8, 16, 32]}"
    )
    for given, marked in (
        ({}, False),
        ({"inherit": "on"}, True),
        ({"inherit": True}, True),
        ({"inherit": "No"}, False),
    ):
        short = {"population": 3, "tournament": 2, "trials": 8, "iterations": 1, "parallel": 1, **given}
        procedure, draw = create("regularized-evolution", space, 1, "min", short), Random(1)
        while not procedure.done:
            for proposal in procedure.ask():
                procedure.tell(proposal.trial, 1, draw.random())
        lineages = [lineage for trial in procedure.trials if (lineage := procedure.lineage(trial))]
        assert lineages and all(("inherits" in lineage) == marked for lineage in lineages)


# --- the family tree --------------------------------------------------------------------------------------------------


def row(key, parent=None, changed=None, before=None, after=None, **more):
    named = {"mst_key": key, "parent": parent, "changed": changed, "value_before": before, "value_after": after}
    return {**named, "inherited": None, "inherits": False, "same": False, **more}


def test_a_family_tree():
    rows = [
        row(1),
        row(2),
        row(3, 1, "units", "4", "8", inherited="2 copied", inherits=True, same=True),
        row(4, 3, "after d", None, "x"),
        row(5, 1, "lr"),
        row(6, 99),
    ]
    nodes = family.tree(rows, {1: 0.5, 3: 0.25})
    assert [(n["mst_key"], n["x"], n["y"]) for n in nodes] == [
        (1, 0, 0.5),
        (3, 1, 0),
        (4, 2, 0),
        (5, 1, 1),
        (2, 0, 2),
        (6, 0, 3),
    ]
    assert [n["inherits"] for n in nodes] == [False, True, False, False, False, False] and nodes[1]["same"]
    assert list(family.text(nodes)) == [
        "1  0.5",
        "|- 3  0.25  units: 4 -> 8  2 copied",
        "|  `- 4  after d: none -> x",
        "`- 5  lr",
        "2",
        "6",
    ]


def test_a_long_line_is_no_recursion():
    nodes = family.tree([row(1), *(row(key, key - 1) for key in range(2, 3000))], {})
    assert nodes[-1]["x"] == 2998 and {node["y"] for node in nodes} == {0}
    assert sum(1 for _ in family.text(nodes)) == 2999


def test_of_a_large_family_the_lines_of_the_best_stay_and_the_others_are_counted():
    # 1 - 2 - 3, 1 - 4, 2 - 5, and 6 - 7; the best are 3, 7, and then 4
    rows = [row(1), row(2, 1), row(3, 2), row(4, 1), row(5, 2), row(6), row(7, 6)]
    nodes = family.tree(rows, {1: 0.1, 2: 0.2, 3: 0.9, 4: 0.5, 5: 0.3, 6: 0.1, 7: 0.8})
    for node, same in zip(family.shortened(nodes, "max", 7), nodes, strict=True):
        assert node == {**same, "more": 0, "above": 0}
    kept = family.shortened(nodes, "max", 5)
    assert [(n["mst_key"], n["parent"], n["more"]) for n in kept] == [
        (1, None, 1),
        (2, 0, 1),
        (3, 1, 0),
        (6, None, 0),
        (7, 3, 0),
    ]
    assert [n["y"] for n in kept] == [0, 0, 0, 1, 1] and sum(n["more"] for n in kept) == 2
    # (of the least values, the best is 1; then come 6, 2 and 5)
    assert [n["mst_key"] for n in family.shortened(nodes, "min", 4)] == [1, 2, 5, 6]


def test_a_tree_as_text_has_a_line_for_each_trial_whatever_a_client_wrote():
    evil = "a\nb\r\x1b[2J\u2028\u202ec"
    (line,) = family.text(family.tree([row(1, None, evil, evil, evil, inherited=evil)], {}))
    assert line.isprintable() and line.count("a b  [2J  c") == 4
