"""The autotuner of a kernel by its measured times: what it costs and what it gains, in simulated time."""

import random

import pytest

from mop_udf.kernels.autotuner import TRIAL_SHARE, Autotuner, Measurement
from mop_udf.kernels.autotuner_memory import AutotunerMemory


def run(times, compile_times, batches, sub_epoch=100, refuse=(), run_batches=None, **more):
    """Seconds of a whole run under the autotuner, and the kernels it used; by the trainer's own procedure."""
    autotuner, clock, used, left = Autotuner(**more), 0.0, [], batches
    while left:
        here = min(left, sub_epoch)
        while here:
            kernel = autotuner.next_kernel(left, run_batches or left, clock)
            if kernel in refuse:
                autotuner.refused[kernel] = "no"
                continue
            used.append(kernel)
            count = here
            if kernel not in autotuner.batch_seconds:
                count = min(here, 10)
                clock += compile_times[kernel]
                autotuner.record_trial(kernel, None, compile_times[kernel])
                autotuner.record_trial(kernel, times[kernel], compile_times[kernel])
            else:
                if autotuner.needs_retiming(kernel):
                    count = min(here, 10)
                autotuner.record_time(kernel, times[kernel])
            clock += count * times[kernel]
            here, left = here - count, left - count
    return clock, used


DENSE = {"plain": 0.0024, "loop": 0.0004, "xla": 0.00007}
CNN = {"plain": 0.010, "loop": 0.009, "xla": 0.030}
COMPILE = {"plain": 0.4, "loop": 0.4, "xla": 1.5}


def test_a_long_run_of_a_small_net_ends_with_xla():
    seconds, used = run(DENSE, COMPILE, 200_000)
    assert used[-1] == "xla" and seconds < 0.2 * 200_000 * DENSE["loop"] + 5


def test_a_short_run_compiles_one_kernel():
    _, used = run(DENSE, COMPILE, 500)
    assert set(used) == {"loop"}


def test_a_convolution_on_a_cpu_does_not_try_xla():
    _, used = run(CNN, COMPILE, 50_000, convolutional=True)
    assert "xla" not in used
    _, used = run(CNN, COMPILE, 50_000, convolutional=True, gpu=True)
    assert "xla" in used and used[-1] == "loop"


def test_what_one_batch_size_has_shown_serves_the_next():
    memory = AutotunerMemory()
    assert "xla" not in run(DENSE, COMPILE, 20_000, memory=memory)[1], "not enough work to find out"
    assert "xla" in run(DENSE, COMPILE, 20_000, run_batches=200_000, memory=memory)[1], "enough in the whole run"
    assert "xla" in run(DENSE, COMPILE, 20_000, memory=memory)[1], "and it is known now"
    slow = {"plain": 0.001, "loop": 0.0011, "xla": 0.0012}
    memory = AutotunerMemory()
    run(slow, COMPILE, 3000, run_batches=200_000, memory=memory)
    assert "xla" not in run(slow, COMPILE, 200_000, memory=memory)[1], "what did not help is not tried again"


def test_what_lasts_is_tried_earlier_and_costs_little_from_then_on():
    noted = []
    memory = AutotunerMemory(persistent=True, on_compiled=lambda *measured: noted.append(measured))
    assert "xla" not in run(DENSE, COMPILE, 18_000)[1]
    assert "xla" in run(DENSE, COMPILE, 18_000, memory=memory, name="net 32")[1]
    assert noted == [("net 32", COMPILE["xla"])]
    known = {"memory": AutotunerMemory(memory.speedup, memory.compile_seconds, persistent=True), "name": "net 32"}
    assert "xla" not in run(DENSE, COMPILE, 3000, **known)[1]
    known["memory"].cached_seconds = {"net 32": 0.3}.get
    assert "xla" in run(DENSE, COMPILE, 3000, **known)[1], "it is read from the cache"
    assert "xla" not in run(DENSE, COMPILE, 3000, **{**known, "name": "net 64"})[1]


KNOWN = {kernel: Measurement(DENSE[kernel], COMPILE[kernel]) for kernel in ("loop", "xla")}


def test_what_earlier_runs_measured_decides_at_once():
    assert set(run(DENSE, COMPILE, 20_000, history=KNOWN)[1]) == {"xla"}
    assert set(run(DENSE, COMPILE, 500, history=KNOWN)[1]) == {"loop"}, "to compile XLA takes longer than it gains"
    read = AutotunerMemory(cached_seconds=lambda name: 0.05)
    assert set(run(DENSE, COMPILE, 500, history=KNOWN, memory=read)[1]) == {"xla"}, "it is read from the cache"
    assert run(DENSE, COMPILE, 20_000, history=KNOWN, refuse=["xla"])[1][-1] == "loop"
    assert set(run(DENSE, COMPILE, 20_000, history=KNOWN, forced="loop")[1]) == {"loop"}
    assert set(run(DENSE, COMPILE, 500, history={"xla": KNOWN["xla"]})[1]) == {"loop"}, "with nothing to compare with"


def test_a_kernel_that_earlier_runs_had_for_others_of_the_architecture_counts_beside_the_known_one():
    def others(**more):
        return AutotunerMemory({"xla": DENSE["loop"] / DENSE["xla"]}, {"xla": COMPILE["xla"]}, **more)

    known = {"loop": KNOWN["loop"]}
    assert set(run(DENSE, COMPILE, 20_000, history=known, memory=others(persistent=True))[1]) == {"xla"}
    assert set(run(DENSE, COMPILE, 3000, history=known, memory=others(persistent=True))[1]) == {"loop"}, "it costs more"
    assert set(run(DENSE, COMPILE, 3000, history=known, memory=others(persistent=True), runs=2)[1]) == {"xla"}, (
        "they are the third 3000"
    )
    assert set(run(DENSE, COMPILE, 3000, history=known, memory=others(), runs=9)[1]) == {"loop"}, "nothing lasts here"
    read = others(persistent=True, cached_seconds=lambda name: 0.05)
    assert set(run(DENSE, COMPILE, 500, history=known, memory=read)[1]) == {"xla"}, "it is read from the cache"
    assert run(DENSE, COMPILE, 20_000, history=known, memory=others(persistent=True), refuse=["xla"])[1][-1] == "loop"
    slow = {**DENSE, "xla": 0.003}
    seconds, used = run(slow, COMPILE, 20_000, history=known, memory=others(persistent=True))
    assert used[0] == "xla" and used.count("xla") < 3 and used[-1] == "loop", "it is not alike"
    assert seconds < 20_000 * DENSE["loop"] + 3


def test_what_another_trainer_compiles_is_not_asked_for_again_and_again():
    autotuner = Autotuner(
        AutotunerMemory({"xla": 10.0}, {"xla": 1.0}),
        history={"loop": Measurement(1e-3, 0.5), "plain": Measurement(9e-4, 0.0)},
    )
    autotuner.record_time("plain", 9e-4)
    assert autotuner.next_kernel(10**6, 10**6) == "xla"
    autotuner.busy.add("xla")
    assert autotuner.next_kernel(10**6, 10**6) == "plain"


def test_what_has_been_bought_is_not_bought_for_the_runs_before():
    lost = {
        "history": KNOWN,
        "memory": AutotunerMemory(persistent=True),
        "runs": 9,
    }  # what was compiled is kept no more
    assert set(run(DENSE, COMPILE, 3000, **lost)[1]) == {"loop"}


def test_what_does_not_hold_any_more_is_found_out_anew():
    slow = {**DENSE, "xla": 0.003}
    seconds, used = run(slow, COMPILE, 20_000, history=KNOWN)
    assert used[0] == "xla" and used[-1] == "loop" and seconds < 20_000 * DENSE["loop"] + 3


def test_one_time_that_was_disturbed_decides_nothing():
    """A few batches that took ten times as long, since the machine had other work."""
    autotuner = Autotuner()
    autotuner.record_trial("loop", DENSE["loop"], 0.4)
    autotuner.record_time("loop", DENSE["loop"])
    autotuner.record_trial("xla", 10 * DENSE["xla"], 1.5)
    assert autotuner.best == "loop" and autotuner.next_kernel(1000, 1000) == "xla", "it is timed once more"
    autotuner.record_time("xla", DENSE["xla"])
    assert autotuner.next_kernel(1000, 1000) == "xla" and not autotuner.needs_retiming("loop")
    assert autotuner.memory.speedup["xla"] == pytest.approx(DENSE["loop"] / DENSE["xla"])
    autotuner = Autotuner(history=KNOWN)
    autotuner.record_trial("xla", 10 * DENSE["xla"], 0.3)
    assert autotuner.next_kernel(1000, 1000) == "xla" and autotuner.needs_retiming("xla"), (
        "as earlier runs say, by a few batches"
    )
    autotuner.record_time("xla", 10 * DENSE["xla"])
    assert autotuner.next_kernel(1000, 1000) == "loop", "but not for ever"


def test_what_disappoints_once_and_would_cost_much_is_not_timed_again():
    autotuner = Autotuner(gpu=True)
    autotuner.record_trial("loop", CNN["loop"], 0.4)
    autotuner.record_time("loop", CNN["loop"])
    autotuner.record_trial("xla", CNN["xla"], 1.5)
    assert autotuner.next_kernel(1000, 1000) == "loop"
    assert not Autotuner(forced="loop", batch_seconds=dict(CNN), timings=dict.fromkeys(CNN, 1)).needs_retiming("plain")


def test_what_another_trainer_compiles_is_waited_for_only_where_nothing_else_trains():
    autotuner = Autotuner()
    assert autotuner.waits_for_compilation() and Autotuner(forced="xla").waits_for_compilation()
    autotuner.record_trial("loop", 0.4, 0.5)
    assert not autotuner.waits_for_compilation() and autotuner.next_kernel(100_000, 100_000) == "xla"
    autotuner.busy.add("xla")
    assert autotuner.next_kernel(100_000, 100_000) == "loop"


def test_what_a_probe_has_shown_is_corrected():
    memory = AutotunerMemory()
    autotuner = Autotuner(memory)
    autotuner.record_trial("loop", 0.4, 0.5)
    autotuner.record_trial("xla", 0.3, 1.5)  # a few batches
    assert memory.speedup["xla"] == pytest.approx(4 / 3)
    autotuner.record_time("xla", 0.1)
    assert memory.speedup["xla"] == pytest.approx(4) and memory.spent == 1.5
    autotuner.record_time("xla", 0.05)
    assert memory.speedup["xla"] == pytest.approx(4), "once"
    other = Autotuner(memory)
    other.record_trial("loop", 0.4, 0.5)
    other.record_trial("xla", 0.2, 1.5)
    other.record_time("xla", 0.1)
    assert memory.speedup["xla"] == pytest.approx(4)
    slow = Autotuner(memory)
    slow.record_trial("loop", 0.4, 0.5)
    slow.record_trial("xla", 0.4, 1.5)
    slow.record_time("xla", 0.4)
    assert memory.speedup["xla"] == pytest.approx(1), "the least counts"


def test_where_the_plain_kernel_is_faster_a_long_run_finds_it():
    odd = {"plain": 0.001, "loop": 0.002, "xla": 0.003}
    assert run(odd, COMPILE, 100_000)[1][-1] == "plain"


def test_what_is_forced_is_used_and_what_is_refused_is_not():
    assert set(run(DENSE, COMPILE, 500, forced="xla")[1]) == {"xla"}
    assert set(run(DENSE, COMPILE, 500, forced="xla", refuse=["xla"])[1]) == {"loop"}
    assert set(run(DENSE, COMPILE, 500, forced="loop", refuse=["loop"])[1]) == {"plain"}
    assert run(DENSE, COMPILE, 200_000, refuse=["xla"])[1][-1] == "loop"
    assert set(run(DENSE, COMPILE, 500, refuse=["loop"])[1]) == {"plain"}


def test_models_that_come_together_are_one_computation_where_a_gpu_gains_by_it():
    def autotuner(loop_seconds=0.001, **more):
        made = Autotuner(AutotunerMemory(), **{"gpu": True, **more})
        made.record_trial("loop", None, 0.5)
        made.record_trial("loop", loop_seconds, 0.5)
        return made

    many, few = (1_000_000, 1_000_000), (100, 100)
    assert autotuner().uses_vmap(*many) and not autotuner().uses_vmap(*few), "compiling must pay"
    assert not autotuner(gpu=False).uses_vmap(*many)
    assert not Autotuner(AutotunerMemory(), gpu=True).uses_vmap(*many), "first comes what it is compared with"
    assert not autotuner(refused={"vmap": "why"}).uses_vmap(*many)
    for seconds, gains in ((0.0001, True), (0.002, False)):
        measured = autotuner()
        measured.record_trial("vmap", None, 1.0)
        measured.record_trial("vmap", seconds, 1.0)
        assert measured.uses_vmap(*few) == gains
        assert measured.best == measured.next_kernel(*few) == "loop", "it is not for a single model"


def test_what_is_trained_together_by_name_is_so_without_a_gpu():
    assert Autotuner(AutotunerMemory(), "vmap").uses_vmap(1, 1) and not Autotuner(
        AutotunerMemory(), "loop", gpu=True
    ).uses_vmap(1000, 1000)
    assert Autotuner(AutotunerMemory(), "vmap").next_kernel(1, 1) == "loop"
    assert Autotuner(AutotunerMemory(), "vmap", refused={"loop": "why", "vmap": "why"}).next_kernel(1, 1) == "plain"


@pytest.mark.parametrize("seed", range(5))
def test_it_is_never_much_slower_than_the_plain_kernel(seed):
    """Where the loop is not slower than the plain step: it does the same without a Python call for each batch."""
    source = random.Random(seed)
    for _ in range(200):
        times = {k: 10 ** source.uniform(-4, -1) for k in ("plain", "loop", "xla")}
        times["loop"] = times["plain"] * source.uniform(0.1, 1)
        compiling = source.uniform(0.05, 1)
        # compiling as long as expected or less; a trainer cannot know better before it has tried
        compile_times = {"loop": compiling, "plain": compiling, "xla": source.uniform(0, 0.1 + 3.5 * compiling)}
        batches = int(10 ** source.uniform(1, 5))
        seconds, _ = run(times, compile_times, batches)
        plain = compiling + batches * times["plain"]
        probes = 10 * sum(max(0, times[k] - times["plain"]) for k in ("loop", "xla"))
        assert seconds <= (1 + TRIAL_SHARE) * plain + probes + 1e-6
