"""Where the segments of a packed table and their copies are placed."""

from collections import Counter

import pytest

from pg_mop.packing.placement import LOCAL, copy_stem, deal, place_copies

EQUAL = {"w1": 2, "w2": 2, "w3": 2}


@pytest.mark.parametrize("strengths", [EQUAL, {"w1": 8, "w2": 2, "w3": 1, "w4": 4}, {**EQUAL, LOCAL: 2}])
@pytest.mark.parametrize("segments", [1, 3, 8, 24])
@pytest.mark.parametrize("count", [1, 2])
def test_every_copy_of_a_segment_is_on_a_server_of_its_own(strengths, segments, count):
    servers = deal(segments, strengths)
    copies = place_copies(servers, strengths, count)
    for server, places in zip(servers, copies, strict=True):
        if server == LOCAL:
            assert places == []
        else:
            assert len({server, *places}) == 1 + count
            others = len(strengths) - 1 - (LOCAL in strengths)
            assert LOCAL not in places[:others], "this server has copies only where no other is left"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_copies_are_spread_evenly(count):
    strengths = {f"w{n}": 4 for n in range(1, 6)}
    servers = deal(40, strengths)
    held = Counter(servers)
    for places in place_copies(servers, strengths, count):
        held.update(places)
    assert max(held.values()) - min(held.values()) <= 2 and sum(held.values()) == 40 * (1 + count)


@pytest.mark.parametrize("count", [1, 2])
def test_strong_servers_have_more_copies(count):
    strengths = {"w1": 1, "w2": 4, "w3": 4, "w4": 4}
    held = Counter(name for places in place_copies(deal(26, strengths), strengths, count) for name in places)
    assert held["w1"] < min(held[name] for name in ("w2", "w3", "w4"))


def test_the_segments_of_a_lost_server_are_spread_over_the_others():
    """Over all of them, not over one: else that one would have twice the work."""
    strengths = {f"w{n}": 4 for n in range(1, 5)}
    servers = deal(24, strengths)
    first = Counter(places[0] for server, places in zip(servers, place_copies(servers, strengths, 2)) if server == "w1")
    assert set(first) == {"w2", "w3", "w4"} and max(first.values()) == min(first.values()) == 2


def test_without_copies_there_are_none():
    assert place_copies(["w1", LOCAL], {"w1": 1, LOCAL: 1}, 0) == [[], []]


def test_the_copies_of_a_segment_have_names_of_their_own():
    assert [copy_stem("t", number) for number in (1, 2, 3)] == ["t_copy", "t_copy_2", "t_copy_3"]
