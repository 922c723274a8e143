"""The pool's decisions: which idle trainer a lease gets, and which trainers end."""

from mop_udf.pool.pool import (
    LATE_LOOK_SECONDS,
    RETURN_SECONDS,
    SHARED_BY,
    WAIT_SECONDS,
    Member,
    Pool,
    Waiting,
    is_short,
    memory_of_group,
    memory_short,
)

GIB = 1 << 30


def member(pool, pid, key="k", state="idle", since=0, keep=None, datasets=(), nets=(), **about):
    made = Member(pid, pid, None, key, about, None, 0, since, keep, state)
    made.held = {"datasets": list(datasets), "nets": list(nets)}
    pool.members[pid] = made
    return made


def pids(members):
    return [m.pid for m in members]


def test_a_lease_gets_the_trainer_that_holds_most_of_what_it_wants():
    pool = Pool()
    member(pool, 1, since=1)
    member(pool, 2, since=2, nets=["a", "b"])
    member(pool, 3, since=3, datasets=["d"])
    member(pool, 4, since=4, key="other", datasets=["d"], nets=["a", "b"])
    member(pool, 5, since=5, state="leased", datasets=["d"])
    member(pool, 6, since=6, state="returning", datasets=["d"])
    assert pids(pool.free("k", {"datasets": ["d"], "nets": ["a", "b"]})) == [3, 2, 1]
    assert pids(pool.free("k", {})) == [3, 2, 1], "the one that was used last"
    assert pool.free("nobody's", {}) == [] and pool.free(None, {}) == []


def test_a_session_gets_back_the_trainer_that_it_has_just_given_back():
    pool = Pool()
    own = member(pool, 1, state="leased")
    member(pool, 2, nets=["a"])
    member(pool, 3, key="other")
    wants = {"nets": ["a"], "trainer": 1}
    assert pids(pool.free("k", wants)) == [2], "another session has it"
    pool.leave(own, 10.0)
    assert pool.free("k", wants) == [] and pool.is_expected("k"), "it will be back"
    own.state = "idle"
    assert pids(pool.free("k", wants)) == [1]
    assert pids(pool.free("k", {"nets": ["a"], "trainer": 9})) == [2, 1], "it has ended"
    assert {*pids(pool.free("k", {"trainer": 3}))} == {1, 2}, "its key is another"


def test_trainers_end_that_are_idle_for_too_long_or_not_back_in_time():
    pool = Pool()
    member(pool, 1, since=0, keep=10)
    member(pool, 2, since=5_000_000, keep=10)
    member(pool, 3, since=0, keep=None)
    back = member(pool, 4, state="leased")
    assert pool.to_end(100.0, 9_999_999) == []
    assert pids(pool.to_end(100.0, 10_000_000)) == [1]
    pool.leave(back, 100.0)
    assert back.state == "returning" and pool.to_end(100.0 + RETURN_SECONDS, 0) == []
    assert pids(pool.to_end(100.1 + RETURN_SECONDS, 0)) == [4]


def test_the_next_look_is_at_the_first_of_these_moments():
    pool = Pool()
    assert pool.wait_seconds(0, 0) is None
    leased = member(pool, 1, state="leased")
    assert pool.wait_seconds(0, 0) is None, "a lease may take as long as it likes"
    pool.leave(leased, 50.0)
    assert pool.wait_seconds(51.0, 0) == LATE_LOOK_SECONDS, "so that a standstill is noticed"
    assert pool.wait_seconds(49.75 + RETURN_SECONDS, 0) == 0.25
    del pool.members[1]
    member(pool, 2, since=0, keep=3)
    assert pool.wait_seconds(51.0, 1_000_000) == 2


def test_requests_wait_for_trainers_that_will_be_back_and_for_no_others():
    pool = Pool()
    assert not pool.is_expected("k")
    for pid in (1, 2):
        pool.leave(member(pool, pid, state="leased"), 10.0)
    member(pool, 3, key="other", state="returning")
    assert pool.is_expected("k") and not pool.is_expected(None)
    requests = [Waiting(n, {"key": "k"}, [], None, 10.0 + n) for n in range(3)]
    pool.waiting += requests[:2]
    assert not pool.is_expected("k"), "both are taken"
    assert pool.not_to_wait(11.0) == []
    pool.waiting.append(requests[2])
    assert pool.not_to_wait(11.0) == [requests[2]]
    assert pool.not_to_wait(10.5 + WAIT_SECONDS) == [requests[0], requests[2]]
    del pool.members[1], pool.members[2]
    assert pool.not_to_wait(11.0) == requests
    assert 0 < pool.wait_seconds(11.0, 0) <= WAIT_SECONDS


def test_the_time_in_which_the_machine_stood_still_does_not_count():
    pool = Pool()
    pool.leave(member(pool, 1, state="leased"), 10.0)
    pool.waiting.append(Waiting(2, {"key": "k"}, [], None, 10.0))
    pool.forgive(9.0)
    assert pool.to_end(19.0 + RETURN_SECONDS, 0) == [] and pool.not_to_wait(19.0 + WAIT_SECONDS) == []
    assert pids(pool.to_end(19.1 + RETURN_SECONDS, 0)) == [1] and pool.not_to_wait(19.1 + WAIT_SECONDS) == pool.waiting


def test_a_trainer_lives_whose_machine_stood_still_in_the_last_wait():
    """In the order of the fork server's loop: it waits, forgives, and looks a moment later."""
    pool, now = Pool(), 10.0
    pool.leave(member(pool, 1, state="leased"), now)
    while now < 10.0 + RETURN_SECONDS - LATE_LOOK_SECONDS:
        now += pool.wait_seconds(now, 0)
        assert pool.to_end(now, 0) == []
    now += 8.0  # in place of the last wait
    pool.forgive(8.0)
    assert pool.to_end(now + 0.001, 0) == []
    assert pids(pool.to_end(now + 0.001 + LATE_LOOK_SECONDS, 0)) == [1], "it hangs"


def test_only_the_idle_ones_of_the_roles_are_ended_on_request():
    pool = Pool()
    member(pool, 1, role=10, database=1)
    member(pool, 2, role=10, database=1, state="leased")
    member(pool, 3, role=11, database=2)
    assert pids(pool.of([10], None)) == [1]
    assert pids(pool.of(None, None)) == [1, 3]
    assert pids(pool.of(None, [2])) == [3]


def test_memory_is_short_below_a_tenth_but_not_on_a_small_machine_at_once():
    assert is_short(64 * GIB, 6 * GIB) and not is_short(64 * GIB, 7 * GIB)
    assert is_short(4 * GIB, GIB // 3) and not is_short(4 * GIB, GIB)
    assert not is_short(GIB, GIB // 3), "half a gigabyte of one would be too much to ask for"
    assert memory_short() in (True, False)


def test_cached_files_of_a_control_group_count_as_available(tmp_path):
    own = tmp_path / "cgroup"
    own.write_text("9:name=systemd:/\n0::/server\n")
    group = tmp_path / "server"
    assert memory_of_group(str(tmp_path), str(own)) is None
    group.mkdir()
    (group / "memory.current").write_text(f"{4 * GIB - 1}\n")
    (group / "memory.stat").write_text(f"anon {GIB}\nactive_file {GIB}\ninactive_file {2 * GIB}\nslab_reclaimable 5\n")
    (group / "memory.max").write_text("max\n")
    assert memory_of_group(str(tmp_path), str(own)) is None
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    assert memory_of_group(str(tmp_path), str(own)) == (4 * GIB, 3 * GIB + 6)


def test_a_new_trainer_replaces_idle_ones_beyond_the_limit_of_its_role():
    pool = Pool()
    for pid, state in enumerate(["idle", "leased", "idle", "idle"], start=1):
        member(pool, pid, state=state, since=10 - pid, role=7)
    member(pool, 9, role=8)
    assert pool.surplus(7, None) == pool.surplus(None, 1) == pool.surplus(7, 5, 1) == pool.surplus(7, 4) == []
    assert pids(pool.surplus(7, 4, 1)) == [4], "the one that has been idle longest"
    assert pids(pool.surplus(7, 3, 1)) == [4, 3] and pids(pool.surplus(7, 1, 1)) == [4, 3, 1]
    assert pids(pool.surplus(7, 3)) == [4]


def test_trainers_on_the_way_back_are_ended_as_idle_ones():
    pool = Pool()
    member(pool, 1, role=7)
    member(pool, 2, state="leased", role=7)
    member(pool, 3, state="returning", role=7)
    member(pool, 4, key=None, state="returning", role=7)
    member(pool, 5, state="returning", role=8)
    assert pids(pool.of({7}, None)) == [1, 3] and pids(pool.of(None, None)) == [1, 3, 5]


def part(pool, pid, thousandths, state="idle", since=0, name="GPU 0", **about):
    made = member(pool, pid, state=state, since=since, **about)
    made.device = {"name": name, "part": 1000 * thousandths, "most": 900_000}
    return made


def wanted(thousandths, most=900, name="GPU 0"):
    return {"name": name, "part": 1000 * thousandths, "most": 1000 * most}


def test_idle_trainers_end_for_the_memory_of_a_device():
    pool = Pool()
    part(pool, 1, 300, "leased", since=1)
    part(pool, 2, 300, since=3)
    part(pool, 3, 300, since=2)
    part(pool, 4, 900, name="GPU 1")
    member(pool, 5)  # of a run without pg_mop.gpu_memory_share: its part is not counted
    ends, full = pool.room(wanted(300))
    assert (pids(ends), full) == ([3], None), "the one that has been idle longest"
    assert pids(pool.room(wanted(600))[0]) == [3, 2] and pool.room(wanted(900), None)[0] == []
    assert pool.room(None) == ([], None) and pool.room(wanted(900, name="GPU 2")) == ([], None)
    assert pool.room(wanted(300), pool.members[2]) == ([], None), "it is one of them itself"


def test_a_trainer_on_its_way_back_ends_before_it_holds_a_part_that_another_needs():
    pool = Pool()
    part(pool, 1, 450, "returning", since=1)
    part(pool, 2, 450, since=2)
    assert pids(pool.room(wanted(450))[0]) == [2] and pids(pool.room(wanted(900))[0]) == [2, 1]


def test_leased_trainers_keep_their_parts():
    pool = Pool()
    part(pool, 1, 600, "leased")
    part(pool, 2, 300)
    ends, full = pool.room(wanted(450))
    assert ends == [] and full == (
        "other trainers of the role hold 60 % of the memory of GPU 0, and a trainer needs 45 % of the 90 % that "
        "the role's trainers may take together"
    )


def test_the_trainers_of_another_role_count_against_the_whole_device_alone():
    pool = Pool()
    part(pool, 1, 500, "leased", role=7)
    part(pool, 2, 200, since=1, role=7)
    part(pool, 3, 100, since=2, role=8)
    small = wanted(200, most=400)
    assert pool.room(small, role=8) == ([], None), "another role's idle trainer does not end for this role's own limit"
    assert pids(pool.room(wanted(400, most=400), role=8)[0]) == [3, 2], "its own idle trainers come first"
    assert pids(pool.room(wanted(350, most=400), role=8)[0]) == [3, 2], "the device is full"
    ends, full = pool.room(wanted(600, most=600), role=8)
    assert ends == [] and full == "other trainers hold 50 % of the memory of GPU 0, and a trainer needs 60 % of it"


def test_an_idle_trainer_of_the_role_without_a_part_of_the_gpu_ends_first():
    pool = Pool()
    member(pool, 1, role=7, gpu=0)
    member(pool, 2, state="leased", role=7, gpu=0)
    member(pool, 3, role=7, gpu=1)
    member(pool, 4, role=8, gpu=0)
    member(pool, 5, role=7, gpu=None)
    part(pool, 6, 100, role=7, gpu=0)
    assert pids(pool.room(wanted(100), role=7)[0]) == [1]
    assert pids(pool.room(wanted(850), role=7)[0]) == [1, 6]
    assert pool.room(wanted(100, name="this machine"), role=7) == ([], None)


def serving(pool, pid, came=0, left=0, state="serving", key="s", **about):
    made = member(pool, pid, key, state, **about)
    made.serves, made.came, made.left = True, came, left
    return made


def test_another_serving_process_is_forked_when_each_has_sessions_enough():
    pool = Pool()
    assert pool.needs_serving("s", 1, 7, None) and not pool.needs_serving("s", 0, 7, None)
    first = serving(pool, 1, came=SHARED_BY - 1, role=7)
    assert not pool.needs_serving("s", 2, 7, None)
    first.came += 1
    assert pool.needs_serving("s", 2, 7, None) and not pool.needs_serving("s", 1, 7, None)
    serving(pool, 2, came=9, left=9, role=7)
    assert pids(pool.serving("s")) == [2, 1] and not pool.needs_serving("s", 3, 7, None)
    assert pool.needs_serving("other key", 2, 7, None)
    serving(pool, 3, key=None, state="returning")
    assert pids(pool.serving("s")) == [2, 1] and pool.serving(None) == []


def test_a_serving_process_is_forked_within_the_limit_of_its_role_alone():
    pool = Pool()
    member(pool, 1, state="leased", role=7)
    member(pool, 2, role=7)
    assert pool.needs_serving("s", 2, 7, 2) and not pool.needs_serving("s", 2, 7, 1)
    assert pool.needs_serving("s", 2, 8, 1)
    serving(pool, 3, came=SHARED_BY, role=7)
    assert not pool.needs_serving("s", 2, 7, 2) and pool.needs_serving("s", 2, 7, 3)
    pool.members[3].state = "idle"
    assert not pool.needs_serving("s", 2, 7, 2), "it would take the place of one with the same models"


def test_a_serving_process_makes_room_for_a_trainer_of_its_role_after_idle_ones():
    pool = Pool()
    part(pool, 1, 300, "serving", since=0, role=7)
    part(pool, 2, 300, since=9, role=7)
    part(pool, 3, 300, "serving", role=8)
    assert pids(pool.surplus(7, 2, 1)) == [2] and pids(pool.surplus(7, 1, 1)) == [2, 1]
    assert pids(pool.room(wanted(300), role=7)[0]) == [2] and pids(pool.room(wanted(600), role=7)[0]) == [2, 1]
    assert pool.room(wanted(800), role=7)[1] is not None, "that of another role keeps its part"
    assert pids(pool.of([7], None)) == [1, 2]


def test_a_serving_process_at_rest_is_idle():
    pool, told = Pool(), {"quiet": True, "left": 2, "held": {"nets": ["n"]}}
    one = serving(pool, 1, came=5, keep=60)
    pool.hear(one, told, 7)
    assert (one.state, one.since, one.left, one.held) == ("idle", 7, 2, {"nets": ["n"]})
    assert pool.idle() == [one] and pids(pool.to_end(0, 60_000_007)) == [1]
    pool.hear(one, {**told, "quiet": False}, 9)
    assert (one.state, one.since) == ("serving", 9) and pool.to_end(0, 90_000_000) == []
    one.key, one.state = None, "returning"  # it is being killed
    pool.hear(one, told, 10)
    assert one.state == "returning"
