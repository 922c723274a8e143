"""What earlier runs have measured, and what is made of it: without a server."""

import dataclasses

from pg_mop.plan.cost_history import MOST_DEVICES, CostHistory, Net, typical
from pg_mop.schedule.cost import Costs

FIT = {"batch_size": 32, "dropout": None, "class_weight": None}
ADAM = {"optimizer": "Adam", "loss": "mse"}
NET = Net.of("{}", ADAM, FIT, "4 -> 3", "tensorflow")


def row(net=NET, kernel="loop", seconds=1.0, device="one", part="model", compiling=0.5, noted_at=0, runs=1):
    return {
        "net": net.digest,
        "part": part,
        "version": "v",
        "device": device,
        "kernel": kernel,
        "batch_seconds": seconds,
        "compile_seconds": compiling,
        "runs": runs,
        "noted_at": noted_at,
    }


def test_a_net_is_what_is_compiled_alike_and_has_batches_alike():
    others = [
        Net.of("{ }", ADAM, FIT, "4 -> 3", "tensorflow"),
        Net.of("{}", ADAM, FIT, "5 -> 3", "tensorflow"),
        Net.of("{}", ADAM, FIT, "4 -> 3", "jax"),
        Net.of("{}", {**ADAM, "optimizer": "SGD"}, FIT, "4 -> 3", "tensorflow"),
        *(
            Net.of("{}", ADAM, {**FIT, **more}, "4 -> 3", "tensorflow")
            for more in ({"batch_size": 16}, {"dropout": 0.1}, {"class_weight": {0: 2.0}})
        ),
    ]
    assert len({NET.digest, *(net.digest for net in others)}) == 8
    assert Net.of("{}", ADAM, {**FIT, "class_weight": {1: 3.0}}, "4 -> 3", "tensorflow") == others[-1]
    assert NET.architecture == others[1].architecture != others[0].architecture
    assert "{}" not in repr(dataclasses.asdict(NET)), "an architecture is not to be read"


def test_each_architecture_is_read_once():
    asked = []
    cost_history = CostHistory(lambda architecture: asked.append(architecture) or [row()])
    assert cost_history.batch_seconds(NET) == 1.0 and cost_history.hints(NET) and asked == [NET.architecture]


def test_the_best_kernel_counts_and_the_median_of_devices():
    rows = [
        row(kernel=kernel, device=device, seconds=seconds)
        for device, kernel, seconds in (
            ("one", "loop", 4.0),
            ("one", "xla", 1.0),
            ("two", "loop", 3.0),
            ("three", "loop", 9.0),
        )
    ]
    cost_history = CostHistory(lambda architecture: rows)
    assert cost_history.batch_seconds(NET) == 3.0
    assert cost_history.hints(NET)["known"] == [
        ["model", "v", r["device"], r["kernel"], r["batch_seconds"], 0.5, 1] for r in rows
    ]
    assert CostHistory().batch_seconds(NET) is CostHistory().hints(NET) is None


def test_others_of_the_architecture_tell_how_kernels_compare():
    others = [Net.of("{}", ADAM, {**FIT, "batch_size": size}, "4 -> 3", "tensorflow") for size in (8, 16, 64)]
    rows = [
        row(net, kernel, seconds, compiling=2.0)
        for net, times in zip(others, (2.0, 4.0, 3.0))
        for kernel, seconds in (("loop", times), ("xla", 1.0))
    ]
    told = CostHistory(lambda architecture: [*rows, row(others[0], "plain", device="no loop there")]).hints(NET)
    assert told == {"alike": [["model", "v", "one", "xla", 1 / 3, 2.0, 1]]}
    own = [row(seconds=7.0, runs=3), row(kernel="xla", seconds=0.1, runs=2)]
    told = CostHistory(lambda architecture: [*own, *rows]).hints(NET)
    assert told == {
        "alike": [["model", "v", "one", "xla", 1 / 3, 2.0, 1]],
        "known": [["model", "v", "one", "loop", 7.0, 0.5, 3], ["model", "v", "one", "xla", 0.1, 0.5, 2]],
    }, "its own are its own"


def test_a_trainer_is_told_of_few_devices():
    rows = [row(device=str(number), noted_at=number) for number in range(3 * MOST_DEVICES)]
    known = CostHistory(lambda architecture: rows).hints(NET)["known"]
    assert len(known) == MOST_DEVICES and {r[2] for r in known} == {str(n) for n in range(32, 48)}


class Board:
    left, plan = {}, None

    @staticmethod
    def visits_left(number):
        return 4


class Stage:
    parent = None

    def __init__(self, number, key):
        self.number, self.key = number, key


def test_what_is_expected_counts_until_a_unit_has_ended():
    stages = [Stage(1, "a"), Stage(2, "b")]
    costs = Costs(Board(), lambda stage: stage.key, lambda stage: {"a": 2.0}.get(stage.key, 0.0))
    costs.added(stages)
    assert costs.left(1) == 8.0 and costs.left(2) is None and costs.all_left() == 16.0, "the other is like it"


def test_places_are_kept_apart_and_stand_in_for_one_another():
    rows = [{**row(seconds=seconds), "place": place} for place, seconds in (("", 1.0), ("slow", 4.0))]
    history = CostHistory(lambda architecture: rows)
    assert history.batch_seconds(NET) == 1.0 and history.batch_seconds(NET, "slow") == 4.0
    assert history.batch_seconds(NET, "never measured") == 2.5, "the median of what is known"


def used(kernel, seconds, unit, units, noted_at=1):
    return {**row(kernel=kernel, seconds=seconds, noted_at=noted_at), "unit_seconds": unit, "units": units}


def test_a_plan_takes_the_typical_unit_and_the_autotuner_the_least_seconds():
    rows = [used("loop", 1.0, 1.5, 20)]
    history = CostHistory(lambda architecture: rows)
    assert history.batch_seconds(NET) == 1.5 and typical(rows) == (1.5, "loop", True)
    assert history.hints(NET)["known"][0][4] == 1.0


def test_kernels_count_in_the_shares_of_the_last_run():
    rows = [used("loop", 4.0, 4.4, 30), used("xla", 1.0, 1.2, 10), used("plain", 0.5, 0.5, 90, noted_at=0)]
    assert typical(rows) == ((30 * 4.4 + 10 * 1.2) / 40, "loop", True)
    assert typical([*rows, used("vmap", 0.1, None, 0)]).seconds == typical(rows).seconds, "which no unit used"
    assert typical([used("loop", 4.0, None, 0), used("xla", 1.0, 2.0, 5, noted_at=0)]) == (2.0, "xla", True), (
        "all units of the last run compiled something: the one before counts"
    )
    assert typical([used("loop", 4.0, None, 0), used("xla", 1.0, None, 0)]) == (1.0, "xla", False)
