"""What of a plan an earlier run has trained: plan/reuse.py."""

from pg_mop.call import metrics
from pg_mop.call.earlier import same_rows
from pg_mop.plan.reuse import Beside, Known, adoptable, awaited
from pg_mop.plan.stages import Plan


def chain(*values):
    """A plan of one trial whose parameter has these values; its stages."""
    plan = Plan()
    return plan, plan.ask(1, "root", lambda i: (str(values[i - 1]),), len(values))


def known(stages, run, states=(), scored=True):
    """{identity: [Known]} of a run that has trained these stages, with states of some of them (their numbers)."""
    return {
        s.identity: [
            Known(
                run,
                s.number,
                s.number in states,
                scored,
                (run, s.number),
                None if s.parent is None else (run, s.parent.number),
            )
        ]
        for s in stages
    }


def numbers(found):
    return [(stage.number, of.run, state) for stage, of, state in found]


def both(one, other):
    return {identity: one.get(identity, []) + other.get(identity, []) for identity in {**one, **other}}


def test_all_that_was_trained_up_to_a_state_is_taken_over():
    _, stages = chain(1, 2, 3, 4)
    assert numbers(adoptable(stages, known(stages[:3], 7, {3}))) == [(1, 7, False), (2, 7, False), (3, 7, True)]
    assert numbers(adoptable(stages, known(stages[:3], 7, {2}))) == [(1, 7, False), (2, 7, True)]
    assert adoptable(stages, known(stages[:3], 7)) == [], "no state, nothing to go on from"
    assert adoptable(stages, {}) == []


def test_a_whole_path_is_taken_over_with_its_last_state():
    _, stages = chain(1, 2)
    assert numbers(adoptable(stages, known(stages, 7, {2}))) == [(1, 7, False), (2, 7, True)]
    assert numbers(adoptable(stages, known(stages, 7, {1}))) == [(1, 7, True)], "the last state is read by the output"


def test_metrics_that_nobody_knows_are_evaluated_of_a_state_or_hinder():
    plan = Plan()
    stages = plan.ask(1, "root", lambda i: (str(i),), 3, evaluated=(1, 3))
    assert numbers(adoptable(stages, known(stages, 7, {1, 3}, scored=False))) == [
        (1, 7, True),
        (2, 7, False),
        (3, 7, True),
    ]
    assert adoptable(stages, known(stages, 7, {3}, scored=False)) == []


def test_where_paths_part_the_state_there_is_needed():
    plan = Plan()
    stages = plan.ask(1, "root", lambda i: (str(i),), 3)
    stages += plan.ask(2, "root", lambda i: (str(i) if i == 1 else "x",), 2)
    mine = stages[:3]
    assert numbers(adoptable(stages, known(mine, 7, {1, 3}))) == [(1, 7, True), (2, 7, False), (3, 7, True)]
    assert adoptable(stages, known(mine, 7, {3})) == [], "trained anew for the other, it is another history"


def test_a_path_has_one_history():
    """Two runs have trained the same: what one has is not put after what the other has."""
    _, stages = chain(1, 2, 3)
    seven, eight = known(stages[:2], 7, {2}), known(stages[:3], 8, {3})
    assert numbers(adoptable(stages, both(seven, eight))) == [(1, 8, False), (2, 8, False), (3, 8, True)]
    parts = both({stages[0].identity: seven[stages[0].identity]}, {stages[1].identity: eight[stages[1].identity]})
    assert adoptable(stages, parts) == []


def test_the_run_that_was_asked_for_is_preferred_among_equals():
    _, stages = chain(1, 2)
    several = both(known(stages, 7, {2}), known(stages, 8, {2}))
    assert {of.run for _, of, _ in adoptable(stages, several)} == {8}
    assert {of.run for _, of, _ in adoptable(stages, several, preferred=7)} == {7}


def test_a_trial_goes_on_only_from_what_it_was_taken_over_from():
    plan, stages = chain(1, 2)
    earlier = known(stages, 7, {2})
    stages[0].trained, stages[0].origin = True, (7, 1)
    assert numbers(adoptable(stages[1:], earlier)) == [(2, 7, True)]
    stages[0].origin = None  # trained here
    assert adoptable(stages[1:], earlier) == []


def test_an_iteration_that_was_evaluated_here_and_elsewhere_is_told():
    row = {"dataset": "training", "metric": 0.5, "loss": 1.0}
    text = metrics.lines(
        2,
        3,
        None,
        [
            {**row, "mst_key": 1, "stage": 1, "took": None},
            {**row, "mst_key": 2, "stage": 2, "took": 0.25},
            {**row, "mst_key": 3, "stage": 2, "took": 0.25},
        ],
        "mst_key={}: ".format,
    )
    assert text.startswith("iteration 2 of 3: trained in 0.000 s, evaluated in 0.250 s\n  mst_key=1: ")


# --- runs at the same time --------------------------------------------------------------------------------------------


def beside(stages, run, trained=(), evaluated=True, ends=None, fits=()):
    """{identity: [Beside]} of a run that wants these stages; `ends`: numbers of the last ones of its paths."""
    ends = {stages[-1].number} if ends is None else ends
    return {
        s.identity: [Beside(run, s.number in ends, evaluated, s.number in trained, frozenset(fits))] for s in stages
    }


def test_a_path_that_another_run_is_about_to_train_is_waited_for():
    _, stages = chain(1, 2, 3, 4)
    assert awaited(stages, beside(stages, 7, trained={1})) == {1: 7, 2: 7, 3: 7, 4: 7}
    assert awaited(stages, beside(stages[:2], 7)) == {1: 7, 2: 7}, "the rest goes on from there"
    assert awaited(stages, {}) == {}
    assert awaited(stages, both(beside(stages, 8), beside(stages[:1], 7))) == {1: 7, 2: 8, 3: 8, 4: 8}


def test_a_state_that_moves_on_is_not_waited_for():
    _, stages = chain(1, 2, 3)
    _, longer = chain(1, 2, 3, 4)
    assert awaited(stages, beside(longer, 7)) == {}, "it ends nowhere on this path"
    assert awaited(stages, beside(longer, 7, ends={2, 4})) == {1: 7, 2: 7}


def test_what_is_trained_already_is_not_waited_for():
    """It has been taken over, or cannot be."""
    _, stages = chain(1, 2)
    assert awaited(stages, beside(stages, 7, trained={1, 2})) == {}
    plan = Plan()
    stages = plan.ask(1, "root", lambda i: (str(i),), 1)
    stages += plan.ask(2, "root", lambda i: (str(i) if i == 1 else "x",), 2)
    assert awaited(stages, beside(stages, 7, trained={1}, ends={1, 2})) == {1: 7, 2: 7}


def test_metrics_that_the_other_run_does_not_measure_are_not_waited_for():
    plan = Plan()
    stages = plan.ask(1, "root", lambda i: (str(i),), 3, evaluated=(2, 3))
    assert awaited(stages, beside(stages, 7, evaluated=False)) == {}
    assert len(awaited(stages, beside(stages, 7))) == 3


def test_what_the_run_has_begun_is_not_waited_for():
    _, stages = chain(1, 2, 3)
    assert awaited(stages[1:], beside(stages, 7)) == {}, "the run trains the first one itself"
    stages[0].origin = 7, 1
    assert awaited(stages[1:], beside(stages, 7)) == {2: 7, 3: 7}


def test_a_rule_that_the_other_run_does_not_have_is_not_waited_for():
    """It may end the path at a state that the other run does not keep."""
    _, stages = chain(1, 2, 3)
    early = {1: {"stop"}, 2: {"stop"}, 3: {"stop"}}
    assert awaited(stages, beside(stages, 7, fits={"plain"}), early) == {}
    assert len(awaited(stages, beside(stages, 7, fits={"plain", "stop"}), early)) == 3


def test_rows_that_cannot_be_read_now_are_not_the_same_rows():
    segment = ("training", 0)
    assert same_rows({segment: "7:a"}, {segment: "7:a:of-columns"})
    assert not same_rows({segment: "7:a"}, {segment: None})
