"""The choice of a kernel by its measured times: what it costs and what it gains, in simulated time."""

import random

import pytest

from mop_udf.kernels.choice import SLACK, Choice, Learned


def run(times, compile_times, batches, sub_epoch=100, refuse=(), run_batches=None, **more):
    """Seconds of a whole run under the choice, and the kernels it used; by the trainer's own procedure."""
    choice, clock, used, left = Choice(**more), 0.0, [], batches
    while left:
        here = min(left, sub_epoch)
        while here:
            kernel = choice.next(left, run_batches or left, clock)
            if kernel in refuse:
                choice.refused[kernel] = "no"
                continue
            used.append(kernel)
            count = here
            if kernel not in choice.batch_seconds:
                count = min(here, 10)
                clock += compile_times[kernel]
                choice.tried(kernel, None, compile_times[kernel])
                choice.tried(kernel, times[kernel], compile_times[kernel])
            else:
                if choice.is_doubtful(kernel):
                    count = min(here, 10)
                choice.timed(kernel, times[kernel])
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
    learned = Learned()
    assert "xla" not in run(DENSE, COMPILE, 20_000, learned=learned)[1], "not enough work to find out"
    assert "xla" in run(DENSE, COMPILE, 20_000, run_batches=200_000, learned=learned)[1], "enough in the whole run"
    assert "xla" in run(DENSE, COMPILE, 20_000, learned=learned)[1], "and it is known now"
    slow = {"plain": 0.001, "loop": 0.0011, "xla": 0.0012}
    learned = Learned()
    run(slow, COMPILE, 3000, run_batches=200_000, learned=learned)
    assert "xla" not in run(slow, COMPILE, 200_000, learned=learned)[1], "what did not help is not tried again"


def test_what_lasts_is_tried_earlier_and_costs_little_from_then_on():
    noted = []
    learned = Learned(lasts=True, note=lambda *measured: noted.append(measured))
    assert "xla" not in run(DENSE, COMPILE, 18_000)[1]
    assert "xla" in run(DENSE, COMPILE, 18_000, learned=learned, name="net 32")[1]
    assert noted == [("net 32", COMPILE["xla"])]
    known = {"learned": Learned(learned.speedup, learned.compile_seconds, lasts=True), "name": "net 32"}
    assert "xla" not in run(DENSE, COMPILE, 3000, **known)[1]
    known["learned"].again = {"net 32": 0.3}.get
    assert "xla" in run(DENSE, COMPILE, 3000, **known)[1], "it is read from the cache"
    assert "xla" not in run(DENSE, COMPILE, 3000, **{**known, "name": "net 64"})[1]


KNOWN = {kernel: (DENSE[kernel], COMPILE[kernel]) for kernel in ("loop", "xla")}


def test_what_earlier_runs_measured_decides_at_once():
    assert set(run(DENSE, COMPILE, 20_000, known=KNOWN)[1]) == {"xla"}
    assert set(run(DENSE, COMPILE, 500, known=KNOWN)[1]) == {"loop"}, "to compile XLA takes longer than it gains"
    read = Learned(again=lambda name: 0.05)
    assert set(run(DENSE, COMPILE, 500, known=KNOWN, learned=read)[1]) == {"xla"}, "it is read from the cache"
    assert run(DENSE, COMPILE, 20_000, known=KNOWN, refuse=["xla"])[1][-1] == "loop"
    assert set(run(DENSE, COMPILE, 20_000, known=KNOWN, forced="loop")[1]) == {"loop"}
    assert set(run(DENSE, COMPILE, 500, known={"xla": KNOWN["xla"]})[1]) == {"loop"}, "with nothing to compare with"


def test_a_kernel_that_earlier_runs_had_for_others_of_the_architecture_counts_beside_the_known_one():
    def others(**more):
        return Learned({"xla": DENSE["loop"] / DENSE["xla"]}, {"xla": COMPILE["xla"]}, **more)

    known = {"loop": KNOWN["loop"]}
    assert set(run(DENSE, COMPILE, 20_000, known=known, learned=others(lasts=True))[1]) == {"xla"}
    assert set(run(DENSE, COMPILE, 3000, known=known, learned=others(lasts=True))[1]) == {"loop"}, "it costs more"
    assert set(run(DENSE, COMPILE, 3000, known=known, learned=others(lasts=True), runs=2)[1]) == {"xla"}, (
        "they are the third 3000"
    )
    assert set(run(DENSE, COMPILE, 3000, known=known, learned=others(), runs=9)[1]) == {"loop"}, "nothing lasts here"
    read = others(lasts=True, again=lambda name: 0.05)
    assert set(run(DENSE, COMPILE, 500, known=known, learned=read)[1]) == {"xla"}, "it is read from the cache"
    assert run(DENSE, COMPILE, 20_000, known=known, learned=others(lasts=True), refuse=["xla"])[1][-1] == "loop"
    slow = {**DENSE, "xla": 0.003}
    seconds, used = run(slow, COMPILE, 20_000, known=known, learned=others(lasts=True))
    assert used[0] == "xla" and used.count("xla") < 3 and used[-1] == "loop", "it is not alike"
    assert seconds < 20_000 * DENSE["loop"] + 3


def test_what_another_trainer_compiles_is_not_asked_for_again_and_again():
    choice = Choice(Learned({"xla": 10.0}, {"xla": 1.0}), known={"loop": (1e-3, 0.5), "plain": (9e-4, 0.0)})
    choice.timed("plain", 9e-4)
    assert choice.next(10**6, 10**6) == "xla"
    choice.busy.add("xla")
    assert choice.next(10**6, 10**6) == "plain"


def test_what_has_been_bought_is_not_bought_for_the_runs_before():
    lost = {"known": KNOWN, "learned": Learned(lasts=True), "runs": 9}  # what was compiled is kept no more
    assert set(run(DENSE, COMPILE, 3000, **lost)[1]) == {"loop"}


def test_what_does_not_hold_any_more_is_found_out_anew():
    slow = {**DENSE, "xla": 0.003}
    seconds, used = run(slow, COMPILE, 20_000, known=KNOWN)
    assert used[0] == "xla" and used[-1] == "loop" and seconds < 20_000 * DENSE["loop"] + 3


def test_one_time_that_was_disturbed_decides_nothing():
    """A few batches that took ten times as long, since the machine had other work."""
    choice = Choice()
    choice.tried("loop", DENSE["loop"], 0.4)
    choice.timed("loop", DENSE["loop"])
    choice.tried("xla", 10 * DENSE["xla"], 1.5)
    assert choice.best == "loop" and choice.next(1000, 1000) == "xla", "it is timed once more"
    choice.timed("xla", DENSE["xla"])
    assert choice.next(1000, 1000) == "xla" and not choice.is_doubtful("loop")
    assert choice.learned.speedup["xla"] == pytest.approx(DENSE["loop"] / DENSE["xla"])
    choice = Choice(known=KNOWN)
    choice.tried("xla", 10 * DENSE["xla"], 0.3)
    assert choice.next(1000, 1000) == "xla" and choice.is_doubtful("xla"), "as earlier runs say, by a few batches"
    choice.timed("xla", 10 * DENSE["xla"])
    assert choice.next(1000, 1000) == "loop", "but not for ever"


def test_what_disappoints_once_and_would_cost_much_is_not_timed_again():
    choice = Choice(gpu=True)
    choice.tried("loop", CNN["loop"], 0.4)
    choice.timed("loop", CNN["loop"])
    choice.tried("xla", CNN["xla"], 1.5)
    assert choice.next(1000, 1000) == "loop"
    assert not Choice(forced="loop", batch_seconds=dict(CNN), timings=dict.fromkeys(CNN, 1)).is_doubtful("plain")


def test_what_another_trainer_compiles_is_waited_for_only_where_nothing_else_trains():
    choice = Choice()
    assert choice.waits("loop") and Choice(forced="xla").waits("xla")
    choice.tried("loop", 0.4, 0.5)
    assert not choice.waits("xla") and choice.next(100_000, 100_000) == "xla"
    choice.busy.add("xla")
    assert choice.next(100_000, 100_000) == "loop"


def test_what_a_probe_has_shown_is_corrected():
    learned = Learned()
    choice = Choice(learned)
    choice.tried("loop", 0.4, 0.5)
    choice.tried("xla", 0.3, 1.5)  # a few batches
    assert learned.speedup["xla"] == pytest.approx(4 / 3)
    choice.timed("xla", 0.1)
    assert learned.speedup["xla"] == pytest.approx(4) and learned.spent == 1.5
    choice.timed("xla", 0.05)
    assert learned.speedup["xla"] == pytest.approx(4), "once"
    other = Choice(learned)
    other.tried("loop", 0.4, 0.5)
    other.tried("xla", 0.2, 1.5)
    other.timed("xla", 0.1)
    assert learned.speedup["xla"] == pytest.approx(4)
    slow = Choice(learned)
    slow.tried("loop", 0.4, 0.5)
    slow.tried("xla", 0.4, 1.5)
    slow.timed("xla", 0.4)
    assert learned.speedup["xla"] == pytest.approx(1), "the least counts"


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
    def choice(loop_seconds=0.001, **more):
        made = Choice(Learned(), **{"gpu": True, **more})
        made.tried("loop", None, 0.5)
        made.tried("loop", loop_seconds, 0.5)
        return made

    many, few = (1_000_000, 1_000_000), (100, 100)
    assert choice().together(*many) and not choice().together(*few), "compiling must pay"
    assert not choice(gpu=False).together(*many)
    assert not Choice(Learned(), gpu=True).together(*many), "first comes what it is compared with"
    assert not choice(refused={"vmap": "why"}).together(*many)
    for seconds, gains in ((0.0001, True), (0.002, False)):
        measured = choice()
        measured.tried("vmap", None, 1.0)
        measured.tried("vmap", seconds, 1.0)
        assert measured.together(*few) == gains
        assert measured.best == measured.next(*few) == "loop", "it is not for a single model"


def test_what_is_trained_together_by_name_is_so_without_a_gpu():
    assert Choice(Learned(), "vmap").together(1, 1) and not Choice(Learned(), "loop", gpu=True).together(1000, 1000)
    assert Choice(Learned(), "vmap").next(1, 1) == "loop"
    assert Choice(Learned(), "vmap", refused={"loop": "why", "vmap": "why"}).next(1, 1) == "plain"


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
        assert seconds <= (1 + SLACK) * plain + probes + 1e-6
