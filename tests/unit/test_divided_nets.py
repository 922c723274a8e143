"""How many devices a net is divided among, what each of them holds, and who waits for them."""

import math

import pytest

from mop_udf.kernels.layout import divided_dimension, numbers_on_a_device
from mop_udf.pool.pool import Member, Pool
from mop_udf.pool.process import device_of
from pg_mop.backend.errors import MopError
from pg_mop.backend.settings import parsed
from pg_mop.call.devices import Places
from pg_mop.call.trainer_memory import check_virtual
from pg_mop.plan.arithmetic import Arithmetic
from pg_mop.plan.cost_history import CostHistory, Net
from pg_mop.plan.memory import Need
from pg_mop.plan.stages import Plan
from pg_mop.run.attempt import Action, Attempt, DeviceMemoryExceeded, MemoryExceeded, Policy, State, decide
from pg_mop.schedule.board import Board
from pg_mop.schedule.device_parts import DeviceParts
from pg_mop.schedule.divided_nets import DividedNets, fewest, sizes
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.simulator import simulate
from pg_mop.schedule.unit_batches import UnitBatches

SMALL, LARGE = 1, 2  # configurations


# --- the layout ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "shape,devices,axis",
    [
        ((64, 256), 2, 1),
        ((256, 64), 2, 0),
        ((8, 8), 4, 1),
        ((5, 5, 3, 32), 4, 3),
        ((7, 6), 4, None),
        ((1_000_003, 8), 2, 1),
        ((256,), 2, None),
        ((), 2, None),
        ((0, 3), 3, 1),
        ((64, 256), 1, None),
    ],
)
def test_the_largest_dimension_that_divides_evenly_is_divided(shape, devices, axis):
    assert divided_dimension(shape, devices) == axis
    held = numbers_on_a_device([shape], devices)
    assert held == math.prod(shape) // (1 if axis is None else devices)


def layers(*made):
    entry = {"class_name": "InputLayer", "config": {"batch_shape": [None, 12]}}
    return {
        "class_name": "Sequential",
        "config": {"layers": [entry, *({"class_name": n, "config": c} for n, c in made)]},
    }


def test_the_share_of_each_device_is_that_of_the_layout():
    found = Arithmetic.of(
        layers(
            ("Embedding", {"input_dim": 64, "output_dim": 8}),
            ("Conv1D", {"filters": 16, "kernel_size": [3]}),
            ("LSTM", {"units": 4}),
            ("Bidirectional", {"layer": {"class_name": "Dense", "config": {"units": 6}}}),
            ("Dense", {"units": 3}),
        )
    )
    assert found.kernels == [(64, 8), (3, 8, 16), (16, 16), (4, 16), (4, 6), (4, 6), (12, 3)]
    whole = sum(map(math.prod, found.kernels))
    assert found.share_on_each_of(2) == (found.parameters - whole + whole // 2) / found.parameters
    assert found.share_on_each_of(1) == 1.0 and Arithmetic().share_on_each_of(8) == 1.0


def test_variables_are_divided_and_activations_are_not():
    need = Need(weights=100, optimizer=300, activations=7, rows=1 << 40)
    assert need.on_each_of(1.0, 0) == 807 and need.on_each_of(0.25, 0) == 207
    assert need.on_each_of(1.0) == need.on_gpu


# --- how many -----------------------------------------------------------------------------------------------------------
def test_the_fewest_devices_that_hold_a_net():
    assert sizes(8) == [1, 2, 4, 8] and sizes(7) == [1, 2, 4, 7] and sizes(2) == [1, 2] and sizes(0) == [1]
    assert [fewest(8, memory, lambda n: 80 // n) for memory in (100, 80, 79, 40, 39, 20, 10, 9)] == [
        1,
        1,
        2,
        2,
        4,
        4,
        8,
        1,
    ]
    assert fewest(8, None, lambda n: 80) == 1 and fewest(8, 10, lambda n: 0) == 1, "something is unknown"


def options(**given):
    none = dict.fromkeys(("most_devices", "device_memory_mb", "gpu_memory_share", "trainers"))
    return {**none, "keras_backend": "jax", **given}


@pytest.mark.parametrize(
    "given,use_gpus,most,why",
    [
        ({}, True, 4, None),
        ({"most_devices": 2}, True, 2, None),
        ({"most_devices": 9}, True, 4, None),
        ({"most_devices": 1}, True, 1, "pg_mop.most_devices is 1"),
        ({"keras_backend": "tensorflow"}, True, 1, "TensorFlow does not divide models among devices, JAX does"),
        ({"keras_backend": "torch"}, True, 1, "PyTorch does not divide models among devices, JAX does"),
        ({"trainers": "ray"}, True, 1, "a trainer on Ray has one device"),
        ({}, False, 1, "there is one device"),
        ({"most_devices": 3}, False, 3, None),
        ({"most_devices": 3, "keras_backend": "tensorflow"}, False, 1, "TensorFlow does not divide models"),
    ],
)
def test_which_devices_a_net_may_have(given, use_gpus, most, why):
    places = Places(options(**given), use_gpus, lambda server: {"gpus": 4, "memory": {"gpu": 80 << 30}}, True)
    assert places.most(None) == most
    assert (places.why_one(None) or "").startswith(why or "") and (places.why_one(None) is None) is (why is None)
    assert not Places(options(**given), use_gpus, places.info, False).most(None) > 1, "the call divides no net"


def test_the_memory_and_the_numbers_of_devices():
    info = lambda server: {"gpus": 3, "memory": {"main": 8 << 30, "gpu": 80 << 30}}  # noqa: E731
    gpus = Places(options(), True, info, True)
    assert [gpus.place(None, worker) for worker in range(4)] == [0, 1, 2, 0]
    assert [list(gpus.group(None, number, 2)) for number in range(3)] == [[0, 1], [0, 1], [1, 2]]
    assert list(gpus.group(None, 2, 3)) == [0, 1, 2]
    assert gpus.memory(None) == 80 << 30 and not gpus.are_virtual(None)
    assert Places(options(device_memory_mb=512, gpu_memory_share=0.5), True, info, True).memory(None) == 256 << 20
    virtual = options(device_memory_mb=512, gpu_memory_share=0.5, most_devices=2)
    assert Places(virtual, False, info, True).memory(None) == 512 << 20, "no share of main memory"
    for given in (options(device_memory_mb=512), {**virtual, "keras_backend": "tensorflow"}):
        assert Places(given, False, info, True).memory(None) is None, "nothing limits a processor's memory to it"
    processors = Places(options(most_devices=2), False, info, True)
    assert processors.memory(None) is None, "they have no memory of their own, unless a setting says so"
    assert processors.are_virtual(None) and [processors.place(None, worker) for worker in range(3)] == [0, 1, 0]
    assert Places(options(), False, info, True).place(None, 5) is None


def test_a_role_has_as_many_virtual_devices_as_threads():
    limits = {None: 2, "one": 1, "other": None, "many": 9}
    info = lambda server: {"gpus": 0}  # noqa: E731
    places = Places(options(most_devices=4), False, info, True, limits.get)
    assert [places.most(server) for server in limits] == [2, 1, 4, 4]
    assert [places.why_one(server) is None for server in limits] == [True, False, True, True]
    assert [places.why_no_more(server) is None for server in limits] == [False, False, True, True]
    assert places.why_one("one") == (
        "pg_mop.most_devices is 4, and the role may have 1 thread, one for each device (mop_limit)"
    )
    gpus = Places(options(most_devices=4), True, lambda server: {"gpus": 4}, True, limits.get)
    assert gpus.most(None) == 4 and gpus.why_no_more(None) is None, "a GPU needs no thread of its own"


def test_the_need_is_that_of_the_server_of_the_unit():
    board, asked = board_of(), []
    needed = lambda stage, n, server: asked.append(server) or (20 if server == "GPUs" else 10) // n  # noqa: E731
    divided = DividedNets(lambda server: 2, lambda server: 10, needed, lambda stage: stage, None, True)
    assert [divided.of(server, unit(board, LARGE)) for server in (None, "GPUs")] == [1, 2]
    assert asked == [None, "GPUs", "GPUs"]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_share_of_memory_is_refused_where_devices_are_virtual(earlier):
    check_virtual(options(most_devices=2), earlier)
    with pytest.raises(MopError, match=r"gpu_memory_share \(0.02\) does not apply to virtual devices") as error:
        check_virtual(options(most_devices=2, gpu_memory_share=0.02), earlier)
    assert error.value.hint == "RESET pg_mop.gpu_memory_share;" + " or SET pg_mop.most_devices = 1;" * (not earlier)


@pytest.mark.parametrize("name", ["device_memory_mb", "most_devices"])
@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_bad_setting_is_an_error_that_names_the_range(name, text):
    with pytest.raises(MopError, match=name) as error:
        parsed({name: text})
    assert error.value.hint.startswith("It takes an integer from 1 to ")


# --- who waits ----------------------------------------------------------------------------------------------------------
def board_of(workers=4, segments=4, keys=2):
    plan = Plan()
    for key in range(1, keys + 1):
        plan.ask(key, f"root of {key}", lambda iteration: ("", ""), until=1)
    board = Board(plan, segments=list(range(segments)))
    board.serve(range(workers))
    return board


def memory_of(board, devices=4, large=2, log=None, **more):
    """A DeviceParts on so many devices of 10 bytes, of which the configuration LARGE needs `large` and the others one."""
    needed = lambda stage, n, server: 10 * large // n if stage == LARGE else 10  # noqa: E731
    divided = DividedNets(lambda server: devices, lambda server: 10, needed, lambda stage: stage, log, devices > 1)

    def group_of(device, count):
        first = min(device // count * count, devices - count)
        return tuple(range(first, first + count))

    none = lambda *_: None  # noqa: E731
    return DeviceParts(
        board, lambda worker: worker % devices, none, lambda stage: 0, lambda stage: stage, divided, group_of
    )


def unit(board, key, segment=0, kind="train"):
    return board.unit(key, kind, "training", segment)


def test_a_divided_net_waits_for_its_devices_and_others_wait_for_it():
    board = board_of()
    memory = memory_of(board)
    small, large = unit(board, SMALL), unit(board, LARGE)
    assert memory.places(1, large) == (0, 1) and memory.places(3, large) == (2, 3) and memory.places(3, small) == (3,)
    assert memory.may_begin(0, small, []) and memory.begin(0, small, []) == []
    assert not memory.may_begin(1, large, [0]), "a small net trains on one of its devices"
    assert memory.may_begin(3, large, [0]) and memory.begin(3, large, [0]) == [2], "an idle trainer leaves its device"
    assert memory.has_divided and memory.several(3) == (2, 3) and memory.of(3) == 1 and memory.several(0) == ()
    assert not memory.may_begin(2, small, [0, 3]), "the divided net has all of its devices"
    assert not memory.may_begin(1, large, [0, 3]) and not memory.may_begin(1, large, [0, 3])
    assert memory.may_begin(1, large, [3]) and memory.begin(1, large, [3]) == [0]


def test_a_divided_net_has_the_next_free_devices():
    board = board_of()
    memory = memory_of(board, large=4)
    memory.begin(0, unit(board, SMALL), [])
    assert not memory.may_begin(1, unit(board, LARGE), [0])
    assert not memory.may_begin(2, unit(board, SMALL, 1), [0]), "small ones would keep it waiting for ever"
    assert memory.may_begin(1, None, [0]) and memory.may_begin(2, unit(board, SMALL, 1), [0]), "it has no unit any more"


def test_two_divided_nets_do_not_wait_for_each_other():
    """One takes two of the devices that the other one takes four of."""
    board = board_of(keys=3)
    memory = memory_of(board, large=4)
    memory.divided.more(3, 2)
    memory.begin(0, unit(board, SMALL), [])
    memory.begin(3, unit(board, SMALL, 1), [0])
    assert not memory.may_begin(1, unit(board, 3), [0, 3]) and not memory.may_begin(2, unit(board, LARGE), [0, 3])
    assert memory.may_begin(1, unit(board, 3), [3]), "the larger one has reserved none"
    memory.begin(1, unit(board, 3), [3])
    assert not memory.may_begin(2, unit(board, LARGE), [1])
    assert memory.may_begin(2, unit(board, LARGE), [])


def test_one_command_has_units_of_equally_many_devices():
    board = board_of()
    memory = memory_of(board)
    assert memory.shared_by(unit(board, SMALL)) != memory.shared_by(unit(board, LARGE))
    alone = memory_of(board, devices=1)
    assert alone.shared_by(unit(board, SMALL)) == alone.shared_by(unit(board, LARGE))
    assert alone.places(0, unit(board, LARGE)) == (0,) and alone.more_devices(0) is None


@pytest.mark.parametrize("devices,large", [(2, 2), (4, 2), (4, 4), (3, 3), (3, 2)])
def test_the_simulator_ends_and_gives_a_divided_net_its_devices_alone(devices, large):
    board = board_of(segments=6, workers=5, keys=4)
    memory = memory_of(board, devices, large)
    scheduler = LongestFirst(board, seed=1)
    batches = UnitBatches(board, scheduler, lambda stage: stage, lambda stage: 1 << 30)
    visits = simulate(board, scheduler, lambda unit: 1.0, batches=batches, device_parts=memory)
    assert len(visits) == 4 * 6
    held = [(visit, set(memory.places(visit.worker, visit.unit))) for visit in visits]
    assert {len(places) for visit, places in held if visit.unit.stage == LARGE} == {large}
    for visit, places in held:
        for other, others in held:
            if visit is not other and visit.start < other.end and other.start < visit.end and places & others:
                assert LARGE not in (visit.unit.stage, other.unit.stage), "another net trains on its devices"


def test_a_replay_takes_the_devices_of_the_log():
    board = board_of()
    log = {unit(board, SMALL, 0): 2, unit(board, SMALL, 1): 4}
    memory = memory_of(board, log=log)
    count = lambda key, segment, kind="train": memory.divided.of(None, unit(board, key, segment, kind))  # noqa: E731
    assert [count(SMALL, segment) for segment in range(3)] == [2, 4, 1] and count(LARGE, 0) == 1
    assert count(SMALL, 0, "evaluate") == 4, "the model may fit no fewer"
    assert memory_of(board, devices=2, log=log).divided.of(None, unit(board, SMALL, 1)) == 2, "there are no more"


# --- memory that runs out -------------------------------------------------------------------------------------------------
POLICY = Policy(retries=3, server_timeout=600.0, resume="SELECT madlib.mop_resume(1)")
RAN_OUT = DeviceMemoryExceeded("RESOURCE_EXHAUSTED")


def attempt_of(**given):
    return Attempt(unit(board_of(), SMALL), state=State.RUNNING, **given)


def test_a_unit_that_runs_out_of_a_device_gets_more_of_them_and_is_given_up_at_last():
    assert decide(attempt_of(neighbours=2, more_devices=2), RAN_OUT, POLICY).action is Action.FEWER
    found = decide(attempt_of(more_devices=4, failures=2), RAN_OUT, POLICY)
    assert found.action is Action.MORE and found.state is State.WAITING and found.failures == 0
    assert found.reason.startswith("retried on 4 devices of its server: ")
    assert decide(attempt_of(more_devices=2, batch=True), RAN_OUT, POLICY).action is Action.ALONE
    assert decide(attempt_of(), RAN_OUT, POLICY).action is Action.GIVE_UP
    why = "TensorFlow does not divide models among devices, JAX does"
    assert decide(attempt_of(why_one_device=why), RAN_OUT, POLICY).message == f"RESOURCE_EXHAUSTED ({why})"
    assert decide(attempt_of(why_one_device=why), MemoryExceeded("main"), POLICY).message == "main"
    other = decide(attempt_of(more_devices=2), MemoryExceeded("main memory"), POLICY)
    assert other.action is Action.GIVE_UP, "more devices have no more main memory"


def test_a_net_that_has_run_out_of_memory_has_more_devices_from_then_on():
    board = board_of()
    memory = memory_of(board)
    memory.begin(0, unit(board, SMALL), [])
    assert memory.more_devices(0) == 2
    memory.divided.more(SMALL, 2)
    assert memory.places(0, unit(board, SMALL, 1)) == (0, 1)
    memory.begin(0, unit(board, SMALL, 1), [])
    assert memory.more_devices(0) == 4
    memory.divided.more(SMALL, 4)
    memory.divided.more(SMALL, 2)  # (of a command that began before)
    memory.begin(0, unit(board, SMALL, 2), [])
    assert memory.several(0) == (0, 1, 2, 3) and memory.more_devices(0) is None


def test_what_divided_nets_held_is_no_measurement_of_a_whole_one():
    net = Net("a", "n", "sgd", "mse", 32, "4 -> 3")
    rows = [
        {"net": "n", "device": device, "memory_bytes": size, "part": "model", "version": "v"}
        for device, size in (
            ("NVIDIA H200", 700),
            ("NVIDIA H200, divided by 2", 900),
            ("cpu, divided by 2, 1 threads", 800),
        )
    ]
    history = CostHistory(lambda architecture: rows)
    assert history.most_bytes(net, True) == 700 and history.most_bytes(net, False) == 0


def test_the_pool_counts_all_gpus_of_a_trainer():
    pool = Pool()
    taken = device_of({"gpu": 2, "divided_by": 2, "device_part": 1_000_000, "device_most": 1_000_000})
    assert taken["names"] == ["GPU 2", "GPU 3"]
    assert "names" not in device_of({"gpu": 2, "device_part": 1, "device_most": 1})
    one = lambda gpu: device_of({"gpu": gpu, "device_part": 500_000, "device_most": 1_000_000})  # noqa: E731
    assert pool.room(taken) == ([], None)
    idle = Member.__new__(Member)
    vars(idle).update(device=taken, state="idle", about={"role": 7}, since=1, key="k")
    pool.members[1] = idle
    assert pool.room(one(3), role=7) == ([idle], None) and pool.room(one(1), role=7) == ([], None)
    idle.state = "leased"
    assert "hold 100 % of the memory of GPU 3" in pool.room(one(3), role=7)[1]
    pool.members.clear()
    vars(idle).update(device=one(3), state="leased")
    pool.members[1] = idle
    assert "hold 50 % of the memory of GPU 3" in pool.room(taken, role=7)[1]
