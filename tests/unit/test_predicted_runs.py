"""What a run will take, before it is begun: arithmetic of nets, guesses, the real scheduler in simulated time, and the text."""

import dataclasses

import pytest

from mop_udf.architecture import architecture
from pg_mop.call import search_outlook
from pg_mop.explain.prediction import predict
from pg_mop.plan import estimates as estimating
from pg_mop.plan.arithmetic import Arithmetic, slots
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.estimates import CommandCosts, Estimates, FixedCosts
from pg_mop.plan.fixed_costs import learned
from pg_mop.schedule.outline import outline
from pg_mop.schedule.predicted import Prediction, in_brief, to_json
from pg_mop.search import create, outlook
from pg_mop.search.space import Space
from support.plans import DENSE, configuration, measured, planned, segment, workload
from support.workload import dense, layer, sequential

FREE = CommandCosts(0.0, 0.0, 0.0, 0.0)
FIXED = FixedCosts(
    start=2.0, unit=0.0, ready=0.0, compile=0.0, end=0.5, evaluation=0.0, training=FREE, evaluating=FREE, slowdown=1.0
)
# `chain_seconds` of the run
CHAINS = {"chain_seconds": 0.5}


def arithmetic(text):
    return Arithmetic.of(architecture.check(text))


def predicted(work, configurations, seconds, fixed=FIXED, sessions=None, **more):
    """The prediction where a mini-batch of every net takes `seconds`."""
    first = planned(work, configurations)
    nets = {first.sharing.net(stage) for stage in first.plan.stages.values()}
    planner = planned(work, configurations, history=measured(next(iter(nets)), seconds) if seconds else None)
    count = sessions or planner.sessions()
    return predict(planner, configurations, {}, Estimates(planner, fixed=fixed, sessions=count, **more))


def test_the_arithmetic_of_a_dense_net():
    found = arithmetic(dense(8, 4, 3))
    assert found.parameters == 4 * 8 + 8 + 8 * 3 + 3
    assert found.operations == 2 * (4 * 8 + 8 * 3)
    assert (found.activations, found.unknown) == (11, set())


def test_a_layer_that_is_not_known_is_named_and_keeps_its_shape():
    found = arithmetic(
        sequential("odd", [4], layer("SpectralNormalization", name="s"), layer("Dense", name="d", units=2))
    )
    assert found.unknown == {"SpectralNormalization"} and found.parameters == 10


@pytest.mark.parametrize(
    "optimizer,given,count",
    [("SGD", {}, 0), ("SGD", {"momentum": 0.9}, 1), ("Adam", {"amsgrad": True}, 3), ("RMSprop", {}, 1), ("New", {}, 2)],
)
def test_optimizers_keep_so_many_variables_for_each_weight(optimizer, given, count):
    assert slots(optimizer, given) == count


def test_from_history_the_prediction_is_what_the_simulator_does():
    """Three configurations of 3 iterations on 4 equal segments: 36 units of 2 x 10 batches."""
    configurations = [configuration(key, key / 10) for key in (1, 2, 3)]
    found = predicted(workload(options=CHAINS), configurations, 0.05)
    assert (found.units, found.evaluations, found.simulated) == (36, 12, True)
    assert found.work["train"] == pytest.approx(36 * 2 * 10 * 0.05)
    assert found.lower_bound <= found.makespan <= 1.5 * found.lower_bound
    assert found.makespan >= 12.0, "three configurations in four sessions: each trains its 12 units one after the other"
    assert found.seconds == pytest.approx(2.0 + found.makespan + 0.5)
    assert found.low < found.makespan < found.high
    assert sum(load.busy for load in found.loads) == pytest.approx(36.0)
    assert "3 configurations can keep 3 of 4 sessions busy" in found.limits


@pytest.mark.parametrize(("sources", "low", "high"), [(["history"], 0.8, 1.25), (["arithmetic"], 0.6, 1.6)])
def test_the_range_counts_that_the_time_to_make_nets_ready_is_uncertain(sources, low, high):
    found = Prediction(2, makespan=10.0, work={"train": 1.0, "evaluate": 0.0, "ready": 3.0}, sources=sources)
    found.set_range((0.5, 2.0))
    assert (found.low, found.high) == pytest.approx((9.5 * (0.125 + 0.75 * low), 11 * (0.5 + 0.75 * high)))


def test_the_history_counts_as_of_the_device_that_was_measured_last_with_its_best_kernel():
    work, c = workload(), configuration(1)
    net = planned(work, [c]).sharing.net(planned(work, [c]).plan.path(1)[0])
    base = {"net": net.digest, "part": "model", "version": "v", "compile_seconds": 1.0, "runs": 2}
    rows = [
        {**base, "device": "old", "kernel": "loop", "batch_seconds": 0.001, "noted_at": "2026-01-01"},
        {**base, "device": "new", "kernel": "plain", "batch_seconds": 0.02, "noted_at": "2026-02-01"},
        {**base, "device": "new", "kernel": "loop", "batch_seconds": 0.01, "noted_at": "2026-02-02"},
    ]
    found = estimating.known(estimating.CostHistory(lambda architecture: rows), net)
    assert (found.batch, found.kernel, found.device, found.source) == (0.01, "loop", "new", "history")


def test_without_history_a_net_is_guessed_by_its_operations():
    work, c = workload(options=CHAINS), configuration(1)
    planner = planned(work, [c])
    stage = planner.plan.path(1)[0]
    own = arithmetic(dense(100, 4, 3))
    plain = Estimates(planner, lambda key: own)
    assert plain.net(stage).source == "arithmetic"
    assert plain.net(stage).batch == pytest.approx(estimating.BASE + 3 * own.operations * 10 / estimating.RATE)
    others = Estimates(planner, lambda key: own, lambda: [(1e8, estimating.BASE + 0.01)])
    assert others.net(stage).source == "other nets" and others.measured_nets == 1
    assert others.net(stage).batch == pytest.approx(estimating.BASE + 3 * own.operations * 10 / 1e10)
    assert others.spread([stage])[1] < plain.spread([stage])[1], "a measured machine is a better guess"


def test_a_guess_is_for_the_machine_at_hand():
    planner = planned(workload(), [configuration(1)])
    stage, own = planner.plan.path(1)[0], arithmetic(DENSE)
    usual = Estimates(planner, lambda key: own)
    slow = Estimates(planner, lambda key: own, machine=(estimating.RATE / 3, 3.0))
    assert slow.net(stage).source == usual.net(stage).source == estimating.GUESS
    assert slow.net(stage).batch == pytest.approx(3 * usual.net(stage).batch)
    fixed = FixedCosts(start=1.0, training=CommandCosts(0.01))
    assert fixed.on_machine(2.0) == FixedCosts(
        start=1.0, training=CommandCosts(0.01), unit=2 * fixed.unit, ready=2 * fixed.ready, compile=2 * fixed.compile
    )


def test_a_long_configuration_is_named_as_the_limit():
    configurations = [
        configuration(1, fit="batch_size=10, epochs=40"),
        *(configuration(k, k / 10) for k in range(2, 6)),
    ]
    found = predicted(workload(options=CHAINS), configurations, 0.01)
    assert any(text.startswith("configuration 1 is 83 % of the work".replace(" %", "%")) for text in found.limits)
    assert found.path[0] == 1 and found.shares[1] == pytest.approx(40 / 48)


def test_making_nets_ready_counts_once_for_each_trainer_that_meets_the_net():
    slow = dataclasses.replace(FIXED, start=0.0, ready=3.0, end=0.0)
    work = workload(options={**CHAINS, "scheduler": "round-robin"})  # every trainer has the rows of its own segment
    found = predicted(work, [configuration(1)], 0.001, slow)
    assert found.work["ready"] == pytest.approx(4 * 3.0) and found.makespan >= 12.0
    assert "making nets ready" in found.limits[0] or "making nets ready" in found.limits[1]


def test_unequal_segments_and_trained_stages_count():
    work = workload(options=CHAINS)
    unequal = dataclasses.replace(
        work, segments={("training", k): segment(k, rows=1000 if k == 0 else 10) for k in range(4)}
    )
    c = configuration(1)
    net = planned(unequal, [c]).sharing.net(planned(unequal, [c]).plan.path(1)[0])
    planner = planned(unequal, [c], history=measured(net, 0.01))
    first = planner.plan.path(1)[0]
    first.trained = True
    found = predict(planner, [c], {}, Estimates(planner, fixed=FIXED, sessions=4))
    assert found.units == 8, "two of three iterations are left"
    assert found.makespan == pytest.approx(found.work["train"], rel=0.05), "one path cannot run in parallel"


def test_a_large_plan_is_summed_up_and_agrees_with_its_simulation():
    configurations = [configuration(key, key / 1000) for key in range(1, 101)]
    work = workload(segments=8, options=CHAINS)
    net = planned(work, configurations).sharing.net(planned(work, configurations).plan.path(1)[0])

    def of(most):
        planner = planned(work, configurations, history=measured(net, 0.01))
        return predict(planner, configurations, {}, Estimates(planner, sessions=8), most_units=most)

    simulated, summed = of(10_000), of(0)
    assert (simulated.simulated, summed.simulated) == (True, False)
    assert summed.makespan == pytest.approx(simulated.makespan, rel=0.2)


# --- fixed costs by the log -------------------------------------------------------------------------------------------


def test_the_simulated_units_are_told_compactly():
    configurations = [configuration(key, key / 10) for key in (1, 2, 3)]
    found = predicted(workload(options=CHAINS), configurations, 0.05)
    units = to_json(found)["units"]
    assert units["columns"] == ["session", "from", "until", "mst_key", "iteration", "kind"] and units["left_out"] == 0
    assert len(units["rows"]) == 36 + 12 and {row[3] for row in units["rows"]} == {1, 2, 3}
    assert min(row[1] for row in units["rows"]) == 0.0
    assert max(row[2] for row in units["rows"]) == pytest.approx(found.makespan, rel=1e-3)
    assert all(begin <= until for _, begin, until, *_ in units["rows"])
    trained = {(key, iteration) for *_, key, iteration, kind in units["rows"] if kind == "train"}
    assert trained == {(key, iteration) for key in (1, 2, 3) for iteration in (1, 2, 3)}
    found.visits *= 50
    many = to_json(found)["units"]
    assert (len(many["rows"]), many["left_out"]) == (2000, 50 * 48 - 2000)


def logged(session, began, ended, kind="train", train=None, **more):
    """A unit in the log; `train`: seconds, by default all but 2 ms."""
    train = ended - began - 0.002 if train is None else train
    told = {"run_id": 1, "server": None, "model": 1, "rows": 100, "passes": 1, "bytes": None, "compiled": False}
    return {**told, "session": session, "kind": kind, "began": began, "ended": ended, "train": train, **more}


def test_the_begin_and_the_end_of_a_run_are_learned_from_the_log():
    runs = [
        {"run_id": 1, "start": 0.4, "end": 0.1},
        {"run_id": 2, "start": 9.0, "end": 0.2},
        {"run_id": 3, "start": 0.5, "end": 3.0},
    ]
    found = learned(runs, [])
    assert (found.start, found.end, found.measured) == (0.5, 0.2, 3)
    assert learned(runs, [], warm=True).start == 0.4, "trainers are ready"
    assert learned([{"run_id": 1, "start": -0.1, "end": 0.1}], []).start == 0.0


RUN = {"run_id": 1, "start": 0.4, "end": 0.1}
COSTS = CommandCosts(0.004, 0.001, 0.002, 0.01)


def commands_log(session, costs=COSTS, server=None, noise=lambda n: 0.0, gap=0.003):
    """Commands of a session: units, unit batches and chains, of states of 1 and of 3 MB."""
    units, now = [], 0.0
    for n in range(40):
        models, steps, size = 1 + n % 3, 1 + n % 5, (1 if n % 2 else 3) << 20
        around = costs.around(models * steps) + costs.states(models, size) + noise(n)
        each = around / (models * steps) + 0.05
        for model in range(models):
            for _ in range(steps):
                more = {"server": server, "model": model, "bytes": size}
                if steps == 1:  # the units of a batch have its times
                    units.append(logged(session, now, now + models * each, train=0.05, **more))
                else:
                    units.append(logged(session, now, now + each, train=0.05, **more))
                    now += each
        now += (models * each if steps == 1 else 0.0) + gap
    return units


def test_what_commands_cost_is_learned_by_command_unit_state_and_megabyte():
    found = learned([RUN], commands_log(7)).training
    assert dataclasses.astuple(found) == pytest.approx((0.004 + 0.003, 0.001, 0.002, 0.01), rel=1e-3)
    disturbed = learned([RUN], commands_log(7, noise=lambda n: 1.0 if n == 11 else 0.0)).training
    assert dataclasses.astuple(disturbed) == pytest.approx(dataclasses.astuple(found), rel=0.1)
    idle = learned([RUN], commands_log(7, gap=0.5)).training
    assert idle.command == pytest.approx(0.004 + FixedCosts().training.command / 2, rel=1e-3), "it waited for work"


def test_commands_of_other_servers_have_costs_of_their_own():
    slow = dataclasses.replace(COSTS, command=0.1)
    found = learned([RUN], [*commands_log(7), *commands_log(8, slow, "far")])
    assert found.commands("train", "far").command == pytest.approx(0.103, rel=1e-3)
    assert found.commands("train").command == found.commands("train", "new").command == pytest.approx(0.007, rel=1e-3)
    assert found.commands("evaluate", "far") == FixedCosts().evaluating, "the log has no evaluation"


def test_runs_of_other_nets_tell_nothing_of_commands_if_some_had_these():
    runs = [{**RUN, "alike": False}, {**RUN, "run_id": 2, "start": 0.2, "alike": True}]
    units = [*commands_log(7, dataclasses.replace(COSTS, command=0.5)), *({**u, "run_id": 2} for u in commands_log(8))]
    assert learned(runs, units).training.command == pytest.approx(0.007, rel=1e-3)
    assert learned(runs[:1], units[: len(units) // 2]).training.command == pytest.approx(0.503, rel=1e-3)
    few = [u for u in units if u["run_id"] == 1 or u["began"] < 0.3]
    assert learned(runs, few).training.command == pytest.approx(0.5, rel=0.05), "three commands tell little"


def test_an_evaluated_row_is_learned_in_seconds_of_a_trained_one():
    units = [logged(7, n, n + 0.5, train=0.1, passes=2) for n in range(6)]
    scores = [logged(8, n, n + 0.5, "evaluate", train=0.02) for n in range(6)]
    assert learned([RUN], [*units, *scores]).evaluation == pytest.approx(0.4)
    late = {**scores[0], "train": 9.0}
    assert learned([RUN], [*units, *scores, late]).evaluation < 0.6, "one that was disturbed"
    assert learned([RUN], units).evaluation == FixedCosts().evaluation
    assert learned([RUN], [*units, *({**u, "compiled": True} for u in scores)]).evaluation == FixedCosts().evaluation


def test_without_a_log_the_usual_costs_count():
    assert learned([], []) == FixedCosts()
    found = learned([RUN], [logged(7, 0.0, 1.0, compiled=True)])
    assert (found.training, found.evaluation) == (FixedCosts().training, FixedCosts().evaluation)


def test_a_command_costs_what_its_place_takes_and_states_are_read_and_written_once():
    """Without chains, 12 units of a configuration are 12 commands."""
    costs = dataclasses.replace(FIXED, training=CommandCosts(0.5, 0.25, 0.125, 1.0))
    found = predicted(workload(options={"chain_seconds": 0.0}), [configuration(1)], 0.05, costs)
    assert found.work["around"] == pytest.approx(12 * 0.75) and found.work["write"] == pytest.approx(
        12 * (0.125 + 1 / 16)
    )
    assert found.makespan == pytest.approx(12 * (20 * 0.05 + 0.75 + 0.125 + 1 / 16))
    servers = workload(servers=[None, None, "far", "far"], options={"chain_seconds": 0.0})
    away = predicted(servers, [configuration(1)], 0.05, dataclasses.replace(costs, places={"far": (FREE, FREE)}))
    assert away.work["around"] == pytest.approx(6 * 0.75)


def test_mini_batches_that_were_timed_are_quicker_than_units():
    """Of units that were not measured as a whole, the least seconds of a mini-batch are known."""
    some = [configuration(1)]
    plain = predicted(workload(options=CHAINS), some, 0.05)
    slow = predicted(workload(options=CHAINS), some, 0.05, dataclasses.replace(FIXED, slowdown=1.6))
    assert slow.work["train"] == pytest.approx(1.6 * plain.work["train"])


def test_a_run_keeps_what_its_prediction_says_in_brief():
    work, some = workload(options=CHAINS), [configuration(key, key / 10) for key in (1, 2, 3)]
    first = planned(work, some)
    planner = planned(work, some, history=measured(first.sharing.net(first.plan.path(1)[0]), 0.05))
    found = outline(Estimates(planner, fixed=FIXED, sessions=4))
    assert (found.units, found.evaluations, found.sources) == (36, 12, ["history"])
    assert found.work["train"] == pytest.approx(36 * 2 * 10 * 0.05) and found.makespan == pytest.approx(12.0)
    kept = in_brief(found)
    assert set(kept) < set(to_json(found)) and kept["makespan_low"] < 12.0 < kept["makespan_high"]
    trained = {stage.number for stage in planner.plan.path(1)}
    assert outline(Estimates(planner, fixed=FIXED, sessions=4), trained).units == 24
    assert outline(Estimates(planner), {stage.number for stage in planner.plan.stages.values()}) is None


# --- searches -----------------------------------------------------------------------------------------------------------

SPACE = (
    "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [1e-4, 0.1, 'log']}]}",
    "{'batch_size': [8, 16], 'epochs': [1]}",
)


@pytest.mark.parametrize(
    "name,parameters",
    [
        ("asha", {"trials": 30, "iterations": 16}),
        ("random", {"trials": 7, "iterations": 3}),
        ("successive-halving", {"trials": 9, "iterations": 9}),
        ("hyperband", {"iterations": 9}),
        ("median-stopping", {"trials": 20, "iterations": 8}),
        ("population", {"population": 6, "iterations": 8, "interval": 2}),
    ],
)
@pytest.mark.parametrize("goal", ["min", "max"])
def test_a_search_is_driven_to_its_end_by_made_up_results(name, parameters, goal):
    total = {}
    for order in outlook.ORDERS:
        procedure = create(name, Space.of_texts([1], *SPACE), 3, goal, parameters)
        trials = outlook.drive(procedure, order, 3).trials
        assert procedure.done and trials and all(1 <= t.iterations <= procedure.most for t in trials)
        assert all(1 <= t.evaluations <= t.iterations for t in trials)
        total[order] = sum(t.iterations for t in trials)
    if name in ("random", "successive-halving"):
        assert len(set(total.values())) == 1, "its budgets do not depend on the results"
    if name == "asha":
        assert total["worse"] < total["random"] < total["better"]


def test_trainers_that_share_cores_take_longer():
    planner = planned(workload(segments=8, options=CHAINS), [configuration(1)])
    crowding = [Estimates(planner, threads=1, cores=2, sessions=sessions).crowding for sessions in (1, 2, 8)]
    assert crowding == [1.0, 1.0, 4.0]
    assert Estimates(planner, cores=2, sessions=2).crowding == 1.0, "one thread each"
    some = [configuration(key, key / 100) for key in range(1, 9)]
    alone = predicted(workload(segments=8, options=CHAINS), some, 0.05, sessions=8)
    crowded = predicted(workload(segments=8, options=CHAINS), some, 0.05, sessions=8, threads=1, cores=2)
    assert crowded.makespan == pytest.approx(4 * alone.makespan, rel=0.1)
    assert crowded.lower_bound == pytest.approx(4 * alone.lower_bound)


class Searched:
    """What search_outlook.drive needs of run.spec.Search; notes the trials that were asked for."""

    known, most_trials = (), None

    def __init__(self, name, parameters, most_trials=None):
        self.name, self.parameters, self.most_trials, self.asked = name, parameters, most_trials, []

    def procedure(self, seed, segments, trials=None):
        self.asked.append(trials)
        more = {} if trials is None else {"trials": trials}
        return create(self.name, Space.of_texts([1], *SPACE), seed, "min", {**self.parameters, **more})


@pytest.mark.parametrize("name", ["random", "asha", "successive-halving", "median-stopping"])
def test_a_long_search_counts_as_many_times_a_short_one(name):
    parameters = {"trials": 900, "iterations": 9}
    whole = search_outlook.drive(Searched(name, parameters), 3, 2, most_trials=900, seconds=600.0)
    search = Searched(name, parameters)
    part = search_outlook.drive(search, 3, 2, most_trials=100, seconds=600.0)
    assert search.asked == [None, 100, 100, 100] and (whole.scale, part.scale) == (1.0, 9.0)
    costs = search_outlook.Costs(1, 2, 2, 0.1, 0.01, 0.0, None, FIXED)
    for key in ("least", "expected", "most"):
        full, scaled = whole.cases(costs)[key], part.cases(costs)[key]
        assert scaled["trials"] == full["trials"] == 900 and scaled["longest"] <= full["longest"]
        assert scaled["iterations"] == pytest.approx(full["iterations"], rel=0.15)
        assert scaled["seconds"] == pytest.approx(full["seconds"], rel=0.15)
    limited = Searched(name, parameters, most_trials=300)
    assert search_outlook.drive(limited, 3, 2, most_trials=100, seconds=600.0).scale == 3.0


def test_a_search_that_is_too_long_to_drive_is_driven_once():
    search = Searched("hyperband", {"iterations": 81})
    found = search_outlook.drive(search, 3, 2, seconds=0.0)
    assert len(search.asked) == 2 and not found.whole
    assert set(found.driven) == set(outlook.ORDERS) and len({id(one) for one in found.driven.values()}) == 1


def test_the_drive_ends_in_time_and_hears_the_caller():
    procedure = create("asha", Space.of_texts([1], *SPACE), 3, "min", {"trials": 10_000, "iterations": 81})
    found = outlook.drive(procedure, "random", seconds=0.0)
    assert not found.whole and len(found.trials) < 10_000
    called = []
    whole = outlook.drive(
        create("asha", Space.of_texts([1], *SPACE), 3, "min", {"trials": 9, "iterations": 4}),
        "random",
        check=lambda: called.append(1),
    )
    assert whole.whole and len(called) > 9


def test_max_trials_ends_the_drive():
    procedure = create("asha", Space.of_texts([1], *SPACE), 3, "min", {"trials": 30, "iterations": 4})
    assert len(outlook.drive(procedure, "random", most_trials=5).trials) == 5


DEALS = {**CHAINS, "deal_threads": True, "kernel": "auto"}
LARGE = dense(2000, 500)


def left_at_the_end():
    """Two configurations of a small net, and one of a large net."""
    return [
        configuration(1),
        configuration(2, 0.2),
        configuration(3, architecture=LARGE, fit="batch_size=100, epochs=40"),
    ]


def dealt(options, cores=2, **more):
    planner = planned(workload(segments=2, options=options), left_at_the_end())
    own = {DENSE: arithmetic(DENSE), LARGE: arithmetic(LARGE)}
    architectures = {c["mst_key"]: c["model_arch"] for c in left_at_the_end()}
    fixed = FixedCosts(ready=0.1, compile=0.2)
    estimates = Estimates(planner, lambda key: own[architectures[key]], lambda: [(1e9, 0.04)], fixed, 1, cores, None, 2)
    return predict(planner, left_at_the_end(), {}, estimates, **more)


def test_the_configuration_that_is_left_has_all_cores():
    before, after = dealt(CHAINS), dealt(DEALS)
    assert before.dealt is None and {visit.threads for visit in before.visits} == {None}
    assert after.dealt["sessions"] == 1 and after.dealt["threads"] == 2
    assert 0 < after.dealt["from"] < 0.5 * before.makespan
    assert after.lower_bound <= after.makespan < 0.9 * before.makespan
    assert "dealt" in to_json(after)
    summed = dealt(DEALS, most_units=0)
    assert not summed.simulated and summed.lower_bound <= summed.makespan < 0.95 * before.makespan


def test_there_is_nothing_to_deal_with_as_many_threads_as_cores():
    assert dealt(DEALS, cores=1).dealt is None


def test_what_more_threads_are_worth():
    c = configuration(1, architecture=LARGE, fit="batch_size=100, epochs=1")
    net = planned(workload(), [c]).sharing.net(planned(workload(), [c]).plan.path(1)[0])
    row = {"net": net.digest, "part": "model", "version": "v", "kernel": "loop", "compile_seconds": 0.0, "noted_at": 0}

    def speedup(*measured, own=None, threads=2):
        rows = [{**row, "device": f"cpu (x), {n} threads", "batch_seconds": s, "runs": r} for n, s, r in measured]
        planner = planned(workload(), [c], history=CostHistory(lambda architecture: rows))
        estimates = Estimates(planner, lambda key: own, threads=1, cores=4)
        return estimates.speedup(planner.plan.path(1)[0], threads)

    rows = [
        {**row, "device": f"cpu (x), {n} threads", "batch_seconds": 0.1, "compile_seconds": s, "runs": 1}
        for n, s in ((1, 5), (2, 1))
    ]
    planner = planned(workload(), [c], history=CostHistory(lambda architecture: rows))
    estimates = Estimates(planner, fixed=FIXED, threads=1, cores=4)
    assert [estimates.ready(planner.plan.path(1)[0], n) for n in (1, 2, 4)] == [5, 1, 5], (
        "of 4 threads nothing is known"
    )
    known = arithmetic(LARGE)
    assert speedup() == 1.0, "nothing is known"
    assert 1.0 < speedup(own=known) < speedup(own=known, threads=4) < 4
    assert speedup(own=known, threads=1) == 1.0
    assert speedup(own=arithmetic(dense(8, 4))) < 1.1, "little arithmetic"
    assert speedup((1, 0.2, 3), (2, 0.1, 3)) == pytest.approx(2.0)
    guess = speedup((1, 0.1, 9), own=known)
    slow = [speedup((1, 0.1, 9), (2, 0.1, runs), own=known) for runs in (1, 4)]
    assert slow == pytest.approx([(1 + guess) / 2, (4 + guess) / 5]), "one measurement may have been disturbed"


def test_estimates_are_of_the_threads_of_the_run():
    c = configuration(1)
    planner = planned(workload(), [c])
    net = planner.sharing.net(planner.plan.path(1)[0])
    row = {"net": net.digest, "part": "model", "version": "v", "kernel": "loop", "compile_seconds": 0.0, "runs": 1}
    rows = [
        {**row, "device": f"cpu (x), {threads} threads", "batch_seconds": seconds, "noted_at": at}
        for threads, seconds, at in ((1, 0.4, 1), (2, 0.2, 2))
    ]
    history = CostHistory(lambda architecture: rows)
    assert estimating.known(history, net).batch == 0.2, "the last one"
    history.threads = 1
    assert estimating.known(history, net).batch == 0.4 and history.batch_seconds(net) == 0.4
    history.threads = 8
    assert estimating.known(history, net).batch == 0.2, "no run had as many"
