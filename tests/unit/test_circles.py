"""Every test file is in exactly one circle, and the documents say in which."""

import collections
import re

from support.circles import CIRCLES, LONG, TESTS, files, long_first, third

CONTRIBUTING = TESTS.parent / "CONTRIBUTING.md"


def test_every_test_file_is_in_exactly_one_circle():
    found = collections.Counter(path for circle in CIRCLES for path in files(circle))
    assert set(found) == set(TESTS.rglob("test_*.py")) and set(found.values()) == {1}


def test_three_thirds_are_the_rest():
    assert sorted(path for number in (7, 8, 9) for path in third(number)) == files("rest")


def test_the_table_of_the_circles_is_theirs():
    table = re.findall(r"(?m)^\| (?:`make ([\w-]+)`)? ?\| `(\w+)` \|", CONTRIBUTING.read_text())
    told, circle = collections.defaultdict(list), None
    for name, room in table:
        circle = name or circle
        told[circle].append(room)
    assert {name: sorted(rooms) for name, rooms in told.items()} == {
        "check": CIRCLES["check"],
        "test": CIRCLES["test"],
        "test-all": CIRCLES["rest"],
    }


def test_long_files_exist_and_come_first():
    assert all((TESTS / name).is_file() for name in LONG)
    found = files("test")
    dealt = long_first(found)
    assert sorted(dealt) == sorted(map(str, found)) and dealt[0].endswith(LONG[0])
