"""Search procedures: what all of them keep to, and each against its paper's tables or results made by hand."""

from random import Random

import pytest

from mop_udf.params.parameter_resolver import Resolver
from pg_mop.search import SearchError, create, find
from pg_mop.search.asha import Rung
from pg_mop.search.grids import GridError
from pg_mop.search.hyperband import schedule
from pg_mop.search.madlib_hyperopt import batches
from pg_mop.search.median_stopping import Median
from pg_mop.search.space import Space
from support.conformance import ProcedureConformance
from support.conformance.procedures import FIT, Study, flat, several, space

OPEN = """{'loss': ['mse'], 'optimizer_params_list': [
    {'optimizer': ['Adam'], 'lr': [1e-4, 1, 'log']}, {'optimizer': ['SGD'], 'lr': [0.01, 0.1], 'momentum': [0.5, 0.99,
    'log_near_one']}]}"""


class TestProcedures(ProcedureConformance):
    """A new procedure is an entry of CASES in tests/support/conformance/procedures.py."""


def made(name, seed=5, goal="min", over=None, **parameters):
    return TestProcedures().made(find(name), seed, goal, over, **parameters)


def test_unknown_names_are_refused():
    with pytest.raises(SearchError, match="no search procedure 'genetic'") as error:
        create("genetic", space(), 1)
    assert "asha" in error.value.hint
    assert create("ASHA", space(), 1, "max", "iterations=9, reduction=2,sampler=GRID").settings.reduction == 2
    assert create("successive_halving", space(), 1).name == "successive-halving"
    with pytest.raises(SearchError, match="not of the form"):
        create("asha", space(), 1, parameters="nine")
    with pytest.raises(SearchError, match="sampler of asha must be one of random, grid"):
        create("asha", space(), 1, parameters="sampler=magic()")
    with pytest.raises(GridError, match="'lr' is a distribution"):
        create("grid", space(OPEN), 1)


# --- spaces ------------------------------------------------------------------------------------------


def test_a_space_has_the_dimensions_of_one_block_at_a_time():
    both = space()
    assert both.size == 2 * (2 * 4 + 3 * 3) * 3 == len(list(both.points()))
    configurations = [both.configuration(p) for p in both.points()]
    assert len(set(configurations)) == both.size
    for point, configuration in zip(both.points(), configurations):
        assert ("1.momentum" in point) == ("SGD" in configuration[1])
        assert both.locate(configuration) == point
    assert (
        1,
        "optimizer='SGD(lr=MultiStep(0.1, [3, 5], 0.1),momentum=0.9)',loss='mse',metrics=['accuracy']",
        "batch_size=64,epochs=1",
    ) in configurations


def test_a_configuration_is_of_one_dictionary_of_a_space_of_several():
    both = several()
    points = list(both.points())
    assert both.size == 2 * 2 + 2 + 2 * 3 * 2 == len(points)
    configurations = [both.configuration(p) for p in points]
    assert len(set(configurations)) == both.size
    assert {(c[0], c[2].partition(",")[0]) for c in configurations} == {
        (1, "batch_size=64"),
        (1, "batch_size=128"),
        *((m, f"batch_size={b}") for m in (2, 3) for b in (8, 16, 32)),
    }
    assert [both.locate(c) for c in configurations] == points
    assert both.locate((1, configurations[-1][1], configurations[-1][2])) is None
    random = Random(1)
    assert {both.configuration(both.sample(random)) for _ in range(1000)} == set(configurations)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[]", "space must be a dictionary with entries, or a list"),
        ("[{}]", "space must be a dictionary with entries"),
        ("[{'loss': ['mse']}, 3]", "space must be a dictionary with entries"),
        ("[{'loss': ['mse']}, {'lr': [1]}]", "'lr' is not accepted in space"),
    ],
)
def test_a_list_of_spaces_has_nothing_but_spaces(text, message):
    with pytest.raises(GridError, match=message):
        several(text)


def test_a_point_of_a_distribution_is_found_again():
    wide, random = space(OPEN), Random(3)
    assert wide.size is None
    for _ in range(200):
        point = wide.sample(random)
        assert wide.locate(wide.configuration(point)) == point
    outside = space(OPEN.replace("1e-4, 1,", "1e-4, 1e-3,"))
    assert outside.locate((1, "optimizer='Adam(lr=0.5)',loss='mse'", "batch_size=16,epochs=1")) is None
    assert outside.locate((1, "optimizer='Adam(lr=0.0005)',loss='mse'", "batch_size=16,epochs=1")) is not None
    assert outside.locate((1, "optimizer='Adam(lr=True)',loss='mse'", "batch_size=16,epochs=1")) is None
    assert outside.locate((1, "optimizer='Adam(lr=[0.1', loss=", "batch_size=16,epochs=1")) is None


@pytest.mark.parametrize(
    "text, message",
    [
        ("{'lr': [0.1]}", "'lr' is not accepted"),
        ("{'loss': [open('x')]}", "'open' is none of the sequences"),
        ("{'loss': [Constant(Constant.x)]}", "not a Python dictionary of literals"),
        ("{'loss': [Constant(**{'v': 1})]}", "is not a sequence in compile_params_grid"),
        ("{'loss': [Constant(print(1))]}", "'print' is none of the sequences"),
        ("{'loss': [x.Constant(1)]}", "'x.Constant' is none of the sequences"),
        ("{'loss': [lambda: 1]}", "not a Python dictionary of literals"),
        ("{'loss': 'mse'}", "must be a list of choices"),
    ],
)
def test_grids_take_sequences_and_no_other_calls(text, message):
    with pytest.raises(GridError, match=message):
        Space.of_texts([1], text, FIT)


def test_a_sequence_is_a_choice_and_written_as_it_is():
    grid = """{'loss': ['mse'], 'optimizer': ['sgd'], 'optimizer_params_list': [{'lr': [0.1, [0.1, 0.05],
        Values([0.1, 0.2]), Warmup(0, 3, Cosine(0.1, 10), per='batch')], 'momentum': [0.5]}]}"""
    grid = grid.replace("'optimizer': ['sgd'], ", "")
    texts = [c[1] for c in map(space(grid).configuration, space(grid).points())]
    for lr in ("0.1", "[0.1, 0.05]", "Values([0.1, 0.2])", "Warmup(0, 3, Cosine(0.1, 10), per='batch')"):
        assert f"optimizer='rmsprop(lr={lr},momentum=0.5)',loss='mse'".replace("rmsprop", "RMSprop") in texts
    assert all(space(grid).locate(space(grid).configuration(p)) == p for p in space(grid).points())


# --- successive halving and Hyperband ----------------------------------------------------------------------


def rungs_of(study):
    """{(iterations): how many trials were asked to train so far}"""
    counts = {}
    for _, _, budget in study.asked:
        counts[budget] = counts.get(budget, 0) + 1
    return counts


@pytest.mark.parametrize("skip, expected", [(0, {1: 9, 3: 3, 9: 1}), (1, {3: 9, 9: 3}), (2, {9: 9})])
def test_successive_halving_has_the_rungs_of_li_et_al_2020_table_1(skip, expected):
    study = Study(made("successive-halving", over=flat(100), trials=9, skip=skip)).run()
    assert rungs_of(study) == expected


def test_successive_halving_promotes_the_best_of_each_rung_and_says_why_not_the_others():
    procedure = made("successive-halving", over=flat(9), trials=9)
    losses = {1: 0.5, 2: 0.1, 3: 0.9, 4: 0.2, 5: 0.8, 6: 0.3, 7: 0.7, 8: 0.6, 9: 0.4}
    assert [p.trial for p in procedure.ask()] == list(losses)
    for trial in (1, 3, 5, 7, 8, 9):
        procedure.tell(trial, 1, losses[trial])
        assert procedure.ask() == []  # three of the nine are still to come
    procedure.tell(6, 1, losses[6])
    assert [tuple(p) for p in procedure.ask()] == [(6, None, 3)]  # the best of seven: at most two can be better
    procedure.tell(2, 1, losses[2])
    procedure.tell(4, 1, losses[4])
    assert [p.trial for p in procedure.ask()] == [2, 4]
    assert procedure.stopped() == {
        9: "rung 0: 4th of 9",
        1: "rung 0: 5th of 9",
        8: "rung 0: 6th of 9",
        7: "rung 0: 7th of 9",
        5: "rung 0: 8th of 9",
        3: "rung 0: 9th of 9",
    }
    procedure.tell(4, 3, 0.15)
    procedure.tell(2, 3, None)
    procedure.tell(6, 3, 0.2)
    assert [tuple(p) for p in procedure.ask()] == [(4, None, 9)]
    procedure.tell(4, 9, 0.05)
    assert procedure.done and procedure.best == (4, 9, 0.05)


# (iterations, reduction, skip_last): brackets, each with trials x iterations of its rounds
MADLIB_SCHEDULES = {
    (81, 3, 0): "81x1 27x3 9x9 3x27 1x81, 27x3 9x9 3x27 1x81, 9x9 3x27 1x81, 6x27 2x81, 5x81",
    (9, 3, 0): "9x1 3x3 1x9, 3x3 1x9, 3x9",
    (6, 3, 0): "3x2 1x6, 2x6",
    (5, 5, 0): "5x1 1x5, 2x5",
    (5, 5, 1): "5x1, ",
    (3, 2, 1): "2x2, ",
    (27, 3, 1): "27x1 9x3 3x9, 9x3 3x9, 6x9, ",
}


def rows_of(text):
    """[(bracket, round, trials, iterations)] of a text such as those above; an empty bracket 0 has lost its last round."""
    brackets = text.split(", ")
    return [
        (len(brackets) - 1 - at, number, *map(int, pair.split("x")))
        for at, bracket in enumerate(brackets)
        for number, pair in enumerate(bracket.split())
    ]


def test_schedules_of_madlib_and_of_li_et_al_2018():
    for arguments, text in MADLIB_SCHEDULES.items():
        assert schedule(*arguments, madlib=True) == rows_of(text)
    text = "81x1 27x3 9x9 3x27 1x81, 34x3 11x9 3x27 1x81, 15x9 5x27 1x81, 8x27 2x81, 5x81"
    assert schedule(81, 3) == rows_of(text)


def test_s_max_is_exact_and_rounds_go_half_up():
    for most, reduction, highest in ((243, 3, 5), (1000, 10, 3), (125, 5, 3), (216, 6, 3), (64, 4, 3), (80, 3, 3)):
        rows = schedule(most, reduction, madlib=True)
        assert rows[0][0] == highest and len(rows) == (highest + 1) * (highest + 2) // 2
    assert schedule(5, 2)[:3] == [(2, 0, 4, 1), (2, 1, 2, 3), (2, 2, 1, 5)]
    with pytest.raises(ValueError, match="skip_last must be at most 1, not 2"):
        schedule(6, 3, 2)
    with pytest.raises(SearchError, match="hyperband: skip_last must be at most 2"):
        made("hyperband", skip_last=3)


@pytest.mark.parametrize("name", ["hyperband", "bohb"])
def test_hyperband_asks_for_its_schedule(name):
    study = Study(made(name, over=flat(500), iterations=81)).run()
    wanted = {}
    for _, _, n, r in schedule(81, 3):
        wanted[r] = wanted.get(r, 0) + n
    assert rungs_of(study) == wanted
    assert len(study.configurations) == 81 + 34 + 15 + 8 + 5


def test_hyperband_shares_a_small_space_among_its_brackets():
    study = Study(made("hyperband", over=flat(20), iterations=81)).run()
    begins = {p.budget for p in study.asked if p.configuration}
    assert begins == {1, 3, 9, 27, 81} and len(study.configurations) <= 20


def test_bohb_begins_a_bracket_when_there_is_something_to_learn_from():
    procedure = made("bohb", over=flat(500))
    assert {p.budget for p in procedure.ask()} == {1}
    for trial in range(1, 10):
        assert procedure.ask() == [] or trial > 6
        procedure.tell(trial, 1, trial / 10)
    assert {p.budget for p in procedure.ask() if p.configuration} == {3}
    assert {b: len(told) for b, told in procedure.sampler.losses_at.items()} == {1: 9}


# --- ASHA ---------------------------------------------------------------------------------------------


def test_asha_promotes_as_algorithm_2_does():
    """Reduction 3, rungs 1, 3, 9, one place: results made by hand."""
    procedure = made("asha", over=flat(100), parallel=1, trials=100)

    def job():
        ((trial, configuration, budget),) = procedure.ask()
        assert (configuration is not None) == (budget == 1)
        return trial, budget

    # (trial, budget) that are asked for, and the loss that is told then
    for asked, loss in (
        ((1, 1), 0.5),
        ((2, 1), 0.6),  # one of one: floor(1 / 3) = 0 go on
        ((3, 1), 0.7),
        ((1, 3), 0.4),  # the best of three
        ((4, 1), 0.3),
        ((4, 3), 0.35),  # the best of four, and 1 has gone already
        ((5, 1), 0.65),
        ((6, 1), 0.9),  # among the best floor(5 / 3) = 1 is 4, which has gone
        ((7, 1), 0.45),  # the best two of six, 4 and 1, have gone
        ((7, 3), 0.5),  # the best two are 4 and 7 now
        ((4, 9), 0.1),  # the higher rung first: the best of its three
        ((8, 1), 0.55),
        ((9, 1), None),  # the failed one is in no rung
    ):
        assert job() == asked
        procedure.tell(*asked, loss)
    assert job() == (10, 1)
    assert procedure.stopped() == {9: "failed at iteration 1"}


def test_asha_trains_its_best_to_the_end_when_configurations_run_out():
    study = Study(made("asha", over=flat(10), iterations=81, parallel=3)).run()
    assert study.procedure.best[1] == 81 or 81 in study.reached.values()
    assert len(study.configurations) == 10


def test_asha_promotes_what_is_known_from_earlier():
    over = flat(30)
    configurations = [over.configuration(p) for p in over.points()]
    procedure = made("asha", over=over, parallel=1)
    procedure.begin_with([(c, {1: 0.1 * i}) for i, c in enumerate(configurations[:9])])
    trial, configuration, budget = procedure.ask()[0]
    assert (configuration, budget) == (configurations[0], 3)
    procedure.tell(trial, 3, 0.0)
    assert procedure.ask()[0].configuration == configurations[1]


def test_a_rung_promotes_whom_a_sort_would():
    random, rung, losses, gone = Random(1), Rung(3), [], set()
    for number in range(300):
        losses.append((round(random.random(), 2), number))
        rung.add(*losses[-1])
        while random.random() < 0.7:
            best = [n for _, n in sorted(losses)[: len(losses) // 3] if n not in gone]
            promoted = rung.promote(lambda n: True)
            assert promoted == (best[0] if best else None)
            gone.add(promoted)


# --- population-based training ------------------------------------------------------------------------------


def lists(configuration):
    """The learning rates of a configuration, as a list."""
    text = configuration[1].split("lr=")[1].split(")")[0]
    return [float(v) for v in text.strip("[").split("]")[0].split(",")]


def test_a_population_replaces_its_worst_by_changed_copies_of_its_best():
    procedure = made("population", over=flat(50), population=10, iterations=6, interval=2, fraction=0.2, resample=0)
    start = {p.trial: p.configuration for p in procedure.ask()}
    for trial in range(1, 11):
        procedure.tell(trial, 2, trial / 10)
    asked = procedure.ask()
    assert {p.trial for p in asked if p.configuration is None} == set(range(1, 9))
    assert set(procedure.stopped()) == {9, 10}
    grid = [lists(c)[0] for c in map(flat(50).configuration, flat(50).points())]
    for copy in (p for p in asked if p.configuration):
        assert copy.trial in (11, 12) and copy.budget == 4
        rates = lists(copy.configuration)
        assert rates[:2] in ([lists(start[best])[0]] * 2 for best in (1, 2)) and len(rates) == 3
        assert abs(grid.index(rates[2]) - grid.index(rates[0])) == 1
    assert procedure.why[10].startswith("iteration 2: 10th of 10; trial 1")


def test_the_middle_of_a_population_does_not_wait_for_the_slow():
    procedure = made("population", over=flat(50), population=10, iterations=6, interval=2, fraction=0.2)
    procedure.ask()
    for trial in (1, 2, 3, 4):
        procedure.tell(trial, 2, trial / 10)
        assert procedure.ask() == []
    procedure.tell(5, 2, 0.5)
    assert [tuple(p) for p in procedure.ask()] == [(3, None, 4)]
    procedure.tell(3, 4, 0.01)  # it waits for the others there
    assert procedure.ask() == []


@pytest.mark.parametrize(
    "block",
    [
        "'lr': [0.001, 0.5, 'log'], 'decay': [0.01]",
        "'lr': [0.1, 0.2], 'decay': [0.01, 0.1]",
        "'lr': [0.1, 0.2], 'decay': [None, 0.1]",
        "'learning_rate': [0.1, 0.2, 0.3], 'decay': [0.001, 0.1, 'log']",
        "'lr': [0.1, 0.2, Cosine(0.1, 10), MultiStep(0.2, [3], 0.1, per='batch')]",
        "'lr': [0.1], 'momentum': [None, 0.5, 0.9, 0.0]",
        "'lr': [0.1], 'momentum': [0.0, 0.9], 'nesterov': [True, False]",
        "'lr': [0.1], 'momentum': [0.1, 0.5, Warmup(0.1, 3, 0.5)], 'weight_decay': [None, 0.1, 0.2]",
    ],
)
def test_every_copy_of_a_population_has_parameters_that_can_be_read(block):
    over = Space.of_texts(
        [1],
        f"{{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['SGD'], {block}}}]}}",
        "{'batch_size': [8, 16, 32, MultiStep(8, [3], 2)], 'dropout': [None, 0.1, 0.2, {'a': 0.1}]}",
    )
    for seed in range(2):
        study = Study(made("population", seed, over=over, iterations=6, fraction=0.5), order=seed).run()
        copies = [c for c in study.configurations.values() if "=[" in c[1] + c[2]]
        assert copies
        for _, compile_params, fit_params in study.configurations.values():
            Resolver(compile_params, fit_params).check(6)


def test_a_population_that_can_change_nothing_says_so_before_it_begins():
    over = Space.of_texts(
        [1],
        "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.1], 'decay': [0.1, 0.2]}]}",
        "{'batch_size': [8]}",
    )
    with pytest.raises(SearchError, match="nothing to change in this space") as error:
        made("population", over=over)
    assert "decay" not in error.value.hint.replace("weight_decay", "")


def test_distributions_are_perturbed_by_a_fifth_within_their_bounds():
    over = Space.of_texts(
        [1],
        "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}]}",
        "{'batch_size': [8, 64, 'linear'], 'epochs': [1]}",
    )
    study = Study(made("population", over=over, resample=0, iterations=20)).run()
    copies = 0
    for configuration in study.configurations.values():
        for rates in (
            lists(configuration),
            [int(v) for v in configuration[2].split("batch_size=")[1].split(",epochs")[0].strip("[]").split(",")],
        ):
            for old, new in zip(rates, rates[1:]):
                if old != new:
                    copies += 1
                    assert 0.75 < new / old < 1.3
        assert all(0.001 <= r <= 0.1 for r in lists(configuration))
    assert copies


# --- median stopping, MADlib's hyperopt, Optuna -------------------------------------------------------------------


def test_a_trial_that_is_worse_than_the_median_is_stopped():
    procedure = made("median-stopping", over=flat(5), iterations=3, grace=2, others=3, parallel=5)
    procedure.ask()
    for trial, values in ((1, [1, 2, 3]), (2, [2, 2, 2]), (3, [3, 1, 2])):
        for iteration, told in enumerate(values, 1):
            procedure.tell(trial, iteration, told)
    # averages after 2: 1.5, 2, 2
    procedure.tell(4, 1, 2.5)
    procedure.tell(4, 2, 2.0)  # as good as the median
    assert procedure.stopped() == {}
    procedure.tell(5, 1, 9)  # grace
    assert procedure.stopped() == {}
    procedure.tell(5, 2, 2.1)
    assert procedure.stopped() == {5: "iteration 2: worse than the median of 4 others"}


def test_the_median_of_numbers_that_come_one_by_one():
    from statistics import median

    random, kept, numbers = Random(1), Median(), []
    for _ in range(300):
        numbers.append(random.choice([random.random(), 0.5]))
        kept.add(numbers[-1])
        assert kept.value() == pytest.approx(median(numbers), abs=1e-15) and len(kept) == len(numbers)


@pytest.mark.parametrize(
    "trials, segments, ends",
    [
        (1, 3, [1]),
        (3, 3, [3]),
        (81, 20, [20, 40, 60, 81]),
        (20, 3, [3, 6, 9, 12, 15, 18, 20]),
        (90, 20, [20, 40, 60, 80, 90]),
    ],
)
def test_madlib_s_batches(trials, segments, ends):
    sizes = batches(trials, segments)
    assert [sum(sizes[: i + 1]) for i in range(len(sizes))] == ends
    procedure = made("madlib-hyperopt", over=flat(200), trials=trials, parallel=segments, sampler="random")
    reached = []
    while not procedure.done:
        group = procedure.ask()
        reached.append(max(p.trial for p in group))
        for proposal in group:
            assert procedure.ask() == []
            procedure.tell(proposal.trial, 5, 0.5)
    assert reached == ends


def test_madlib_s_hyperband_adds_the_rounds_up_in_diagonals():
    procedure = made("madlib-hyperband", over=flat(200), iterations=6)
    assert [tuple(p[::2]) for p in procedure.ask()] == [(1, 2), (2, 2), (3, 2)]
    for trial, loss in ((1, 0.3), (2, 0.1), (3, 0.2)):
        assert procedure.diagonal == 0 and procedure.ask() == []
        procedure.tell(trial, 2, loss)
    assert sorted(tuple(p[::2]) for p in procedure.ask()) == [(2, 8), (4, 6), (5, 6)]  # 2 + 6 iterations
    assert procedure.diagonal == 1
    for trial, budget in ((2, 8), (4, 6), (5, 6)):
        procedure.tell(trial, budget, 0.05)
    assert procedure.done
    assert [procedure.place(t) for t in range(1, 6)] == [(1, 0), (1, 1), (1, 0), (0, 0), (0, 0)]


def test_without_optuna_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SearchError, match="the sampler 'tpe' needs the Python package optuna") as error:
        create("tpe", space(), 1)
    assert "pip install" in error.value.hint


@pytest.mark.parametrize("name", ["successive-halving", "hyperband", "population"])
def test_who_stops_by_a_rule_of_his_own_takes_no_place_whenever_that_is_told(name):
    """The best of each first rung, or state_table, does so: the others go on as in any other order."""
    parameters = {"population": {"population": 4, "iterations": 4, "interval": 1, "fraction": 0.5}}.get(
        name, {"iterations": 4, "reduction": 2}
    )
    results = []
    for order in range(3):
        procedure = create(name, flat(40), 3, "min", parameters)
        went_on, ended = set(), set()
        while running := [p for p in procedure.ask() if p.trial not in ended]:
            first = [p for p in running if procedure.trials[p.trial].at == 0]
            went_on |= {p.trial for p in running} - {p.trial for p in first}
            told = sorted(running, key=lambda p: (p.trial * 7 + order * 5) % 11)
            for proposal in told:
                stops = proposal.trial in (1, 2) and proposal in first
                procedure.tell(proposal.trial, proposal.budget, float(proposal.trial), stops and "its own rule" or None)
                ended |= {proposal.trial} if stops else set()
        assert not went_on & {1, 2} and procedure.best[0] == 1 and procedure.why[1] == "its own rule"
        results.append((went_on, procedure.best))
    assert all(result == results[0] for result in results)
