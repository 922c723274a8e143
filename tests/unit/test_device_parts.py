"""Which commands train side by side on a device, by the memory that they need there."""

import pytest

from pg_mop.backend.errors import MopError
from pg_mop.backend.settings import parsed
from pg_mop.call import trainer_memory
from pg_mop.plan.cost_history import CostHistory, Net
from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.device_parts import DeviceParts, levels, parts
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit_batches import UnitBatches

GIB = 1 << 30


def board_of(needs, workers=4, segments=4):
    """A board whose configuration k has one stage that needs needs[k] bytes, and its DeviceParts in a budget of 8 GiB."""
    plan, bytes_of = Plan(), {}
    for key, need in enumerate(needs, 1):
        (stage,) = plan.ask(key, f"root of {key}", lambda iteration: ("", ""), until=1)
        bytes_of[stage.number] = need
    board = Board(plan, segments=list(range(segments)))
    board.serve(range(workers))
    return board, DeviceParts(board, lambda worker: "gpu", lambda device: 8 * GIB, bytes_of.get, lambda stage: stage)


def unit(board, key, segment=0):
    return board.unit(key, "train", "training", segment)


@pytest.mark.parametrize("workers,expected", [(1, [1]), (2, [2, 1]), (7, [7, 3, 1]), (8, [8, 4, 2, 1])])
def test_a_device_is_divided_into_few_different_parts(workers, expected):
    assert levels(workers) == expected


def test_a_trainer_has_the_smallest_part_that_holds_it():
    assert [parts(8, 8 * GIB, n * GIB) for n in (0, 1, 2, 3, 4, 5, 9)] == [8, 8, 4, 2, 2, 1, 1]
    assert parts(8, None, GIB) == 8, "the memory is unknown"


def test_commands_begin_while_their_parts_are_free():
    board, memory = board_of([2 * GIB, 4 * GIB, 8 * GIB])
    assert [memory.parts(0, stage) for stage in (1, 2, 3)] == [4, 2, 1]
    assert memory.may_begin(0, unit(board, 2), [])
    memory.begin(0, unit(board, 2), [])
    assert memory.may_begin(1, unit(board, 1), [0])
    memory.begin(1, unit(board, 1), [0])
    assert not memory.may_begin(2, unit(board, 2), [0, 1]), "a quarter is left"
    assert not memory.may_begin(2, unit(board, 3), [0, 1])


def test_a_large_command_has_the_next_free_parts():
    board, memory = board_of([2 * GIB, 8 * GIB])
    memory.begin(0, unit(board, 1), [])
    assert not memory.may_begin(1, unit(board, 2), [0])
    assert not memory.may_begin(2, unit(board, 1, 1), [0]), "small ones would keep it waiting for ever"
    assert memory.may_begin(1, unit(board, 2), []), "nothing trains on the device"
    assert memory.begin(1, unit(board, 2), []) == [3, 2, 0], "idle trainers give their parts back"
    assert not memory.may_begin(2, unit(board, 1, 1), [1])
    assert memory.begin(1, unit(board, 2, 1), []) == [], "they have none any more"
    memory.full(1)
    assert memory.begin(1, unit(board, 2, 2), []) == [3, 2, 0], "a session may have been opened anew"


@pytest.mark.parametrize("budget", [8 * GIB, None], ids=["a budget", "no budget"])
def test_a_run_that_waits_for_a_device_holds_no_idle_part(budget):
    """Another run may wait for the parts of the idle workers, and hold what this one waits for."""
    board, memory = board_of([2 * GIB])
    memory.budget_of = lambda device: budget
    memory.begin(0, unit(board, 1), [])
    memory.begin(1, unit(board, 1, 1), [0])
    assert memory.begin(2, unit(board, 1, 2), [1]) == [], "by its own parts alone, the run leaves room"
    memory.full(2)
    assert memory.begin(3, unit(board, 1, 3), [1]) == [], "another worker's part was not refused"
    assert sorted(memory.begin(2, unit(board, 1, 2), [1])) == [0, 3]
    assert memory.begin(2, unit(board, 1, 2), [1]) == [], "it has its part now"


@pytest.mark.parametrize("size", [7, 9, 10])
def test_two_runs_that_hold_what_the_other_waits_for_both_end(size):
    """Each run has two workers on a device of ten units. A command takes `size` of them, and a trainer keeps them when idle."""
    held = {
        "a": {0: size // 2, 1: 0},
        "b": {0: size // 2, 1: 0},
    }  # (the first workers have idled since their last command)
    runs, left, waits = {}, {"a": 3, "b": 3}, 0
    for name in held:
        board, memory = board_of([2 * GIB], workers=2)
        runs[name] = board, memory
        memory.begin(0, unit(board, 1), [])
        memory.full(1)
    while any(left.values()) and waits < 10:
        for name, (board, memory) in runs.items():
            if not left[name]:
                held[name] = {}
                continue
            for other in memory.begin(1, unit(board, 1, 1), []):
                held[name][other] = 0
            if sum(sum(own.values()) for own in held.values()) - held[name][1] + size > 10:
                memory.full(1)
                waits += 1
                continue
            held[name][1], left[name] = size, left[name] - 1
    assert not any(left.values()), f"each waits for the other: {held}"


def test_a_worker_that_has_no_unit_any_more_keeps_no_other_waiting():
    board, memory = board_of([2 * GIB, 8 * GIB])
    memory.begin(0, unit(board, 1), [])
    assert not memory.may_begin(1, unit(board, 2), [0])
    assert memory.may_begin(1, None, [0])
    assert memory.may_begin(2, unit(board, 1, 1), [0])


def test_a_net_that_has_run_out_of_memory_gets_half_as_many_neighbours():
    board, memory = board_of([GIB, GIB])
    assert memory.parts(0, 1) == 4 and memory.kind(1) == memory.kind(2)
    memory.fewer(1, 4)
    assert memory.parts(0, 1) == 2 and memory.parts(0, 2) == 4 and memory.kind(1) != memory.kind(2)
    memory.fewer(1, 2)
    memory.fewer(1, 4)  # (of a command that began before)
    assert memory.parts(0, 1) == 1


def test_without_a_budget_nothing_waits_until_memory_runs_out():
    board, _ = board_of([GIB, GIB])
    memory = DeviceParts(board, lambda worker: worker % 2, lambda device: None, lambda stage: 0, lambda stage: stage)
    assert [memory.usual(worker) for worker in range(4)] == [2] * 4, "two workers on each of two devices"
    assert all(memory.may_begin(worker, unit(board, 1, worker), range(worker)) for worker in range(4))
    memory.fewer(1, 2)
    memory.begin(2, unit(board, 2), [])
    assert not memory.may_begin(0, unit(board, 1), [2]) and memory.may_begin(1, unit(board, 1), [2])


def test_trainers_elsewhere_are_not_packed():
    board, _ = board_of([GIB])
    memory = DeviceParts(board, lambda worker: None, lambda device: None, lambda stage: 0, lambda stage: stage)
    assert memory.may_begin(0, unit(board, 1), [1, 2, 3]) and memory.begin(0, unit(board, 1), [1, 2, 3]) == []
    assert memory.of(0) == memory.usual(0) == 1


def simulated(needs, packed):
    board, memory = board_of(needs)
    scheduler = LongestFirst(board, seed=1)
    batches = UnitBatches(board, scheduler, lambda stage: stage, lambda stage: 1 << 30)  # (too large for unit batches)
    return simulate(
        board, scheduler, lambda unit: 1.0, batches=batches, device_parts=memory if packed else None
    ), memory


def test_the_simulator_packs_as_the_executor_does():
    """Two nets that fill the device, and two that fill a quarter of it each: 8 units one by one, and 8 four at a time."""
    free, _ = simulated([8 * GIB, 8 * GIB, 2 * GIB, 2 * GIB], False)
    visits, memory = simulated([8 * GIB, 8 * GIB, 2 * GIB, 2 * GIB], True)
    assert len(visits) == len(free) == 16 and makespan(free) <= 5.0
    for visit in visits:
        beside = [v for v in visits if v.start < visit.end and visit.start < v.end]
        assert sum(1 / memory.parts(v.worker, v.unit.stage) for v in beside) <= 1
    assert 8 + 8 / 2 <= makespan(visits) <= 8 + 8


def test_what_earlier_runs_measured_counts_before_the_estimate():
    net = Net("a", "n", "sgd", "mse", 32, "4 -> 3")
    rows = [
        {"net": "n", "device": "cpu, 1 threads", "memory_bytes": 700, "part": "model", "version": "v"},
        {"net": "n", "device": "NVIDIA H100", "memory_bytes": 900, "part": "model", "version": "v"},
        {"net": "other", "device": "cpu, 1 threads", "memory_bytes": 5000, "part": "model", "version": "v"},
        {"net": "n", "device": "cpu, 2 threads", "memory_bytes": None, "part": "model", "version": "v"},
    ]
    history = CostHistory(lambda architecture: rows)
    assert history.most_bytes(net, False) == 700 and history.most_bytes(net, True) == 900
    assert CostHistory().most_bytes(net, False) == 0


@pytest.mark.parametrize("text", ["0", "1.1", "-1", "nan", "half"])
def test_a_bad_share_is_an_error_that_names_the_range(text):
    with pytest.raises(MopError, match="gpu_memory_share") as error:
        parsed({"gpu_memory_share": text})
    assert error.value.hint == "It takes a share from 0.001 to 1."


def settings(share, limit=None, ray=None):
    return {"gpu_memory_share": share, "trainer_memory_mb": limit, "trainers": ray}


def test_a_share_that_holds_no_trainer_is_refused():
    info = {"memory": {"main": 8 * GIB, "gpu": None}}
    with pytest.raises(MopError, match="leaves trainers 81 MB of this server's memory") as error:
        trainer_memory.check(settings(0.01), info, False)
    assert error.value.hint.startswith("SET pg_mop.gpu_memory_share = 0.059; or "), "480 MB of 8192"
    trainer_memory.check(settings(0.059), info, False)
    for fine in (settings(0.5), settings(None), settings(0.01, ray="r")):
        trainer_memory.check(fine, info, False)
    trainer_memory.check(settings(0.01), info, True)  # (of a GPU's memory, which is unknown)
    info["memory"]["gpu"] = 80 * GIB
    trainer_memory.check(settings(0.01, limit=5000), info, True)
    with pytest.raises(MopError, match="leaves trainers 409 MB of a GPU's memory") as error:
        trainer_memory.check(settings(0.005), info, True)
    assert error.value.hint.startswith("SET pg_mop.gpu_memory_share = 0.008; or "), "600 MB of 81920"
    trainer_memory.check(settings(0.008), info, True)


def test_a_limit_of_one_trainer_above_that_of_all_is_refused():
    info = {"memory": {"main": 8 * GIB, "gpu": None}}
    with pytest.raises(MopError, match="trainer_memory_mb .5000. is more than pg_mop.gpu_memory_share .0.5.") as error:
        trainer_memory.check(settings(0.5, 5000), info, False)
    assert "SET pg_mop.trainer_memory_mb = 4096;" in error.value.hint
    trainer_memory.check(settings(0.5, 4096), info, False)
