"""The failures of a run by cause: equal errors together, the parameter that the failed configurations share, and what helps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pg_mop.report.numbers import is_number

Row = Mapping[str, Any]

MOST_KEYS = 50  # configurations that a cause names
MOST_SHARED = 2  # parameters that a cause names: of more, none tells anything
LEAST_TOLD = 0.5  # a parameter value that more of the other configurations have than this part tells nothing
_NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# where it happened: of equal causes it differs
_PLACE = re.compile(r"^(?:fold \d+: )?(?:mst_key \d+: )?(?:\w+ unit of iteration \d+ on segment \d+: )?")

# the pattern of an error, its kind, and a remedy
HELP = (
    (
        re.compile(r"became NaN|not finite|\bNaN\b|overflow", re.I),
        "diverged",
        "A smaller learning rate, clipnorm=1 in the optimizer, or scaled rows (normalizing_const) help.",
    ),
    (
        re.compile(r"out of memory|memory|OOM|RESOURCE_EXHAUSTED", re.I),
        "memory",
        "A smaller batch_size or a smaller net helps, or a higher limit for the trainers.",
    ),
    (
        re.compile(r"connection|session (was )?lost|terminat|server .*(away|closed)|trainer (was )?lost|exited", re.I),
        "lost",
        "The configuration is not to blame: a resumed run tries it again.",
    ),
)


def cause_of(error: str | None) -> str:
    """The part of an error by which errors are compared: its first line, without the unit and with # for each number.

    >>> cause_of("fold 2: train unit of iteration 1 on segment 3: the loss became NaN")
    'the loss became NaN'
    >>> cause_of("unknown layer 7")
    'unknown layer #'
    >>> cause_of(None)
    'no error was noted'
    """
    lines = (error or "").strip().splitlines()
    return _NUMBER.sub("#", _PLACE.sub("", lines[0].strip())) if lines else "no error was noted"


def kind_of(cause: str) -> tuple[str, str | None]:
    """(a word of HELP, or 'other'; what helps, or None) of an error, or of its part that `cause_of` compares.

    >>> kind_of("the connection was lost")[0], kind_of("unknown layer #")
    ('lost', ('other', None))
    """
    return next(((kind, text) for pattern, kind, text in HELP if pattern.search(cause)), ("other", None))


def causes(configurations: Sequence[Row], varied: Sequence[str]) -> list[dict[str, Any]]:
    """The causes of failures, the most frequent first.

    `configurations`: dicts with mst_key, status, reason and parameters; `varied`: names of the parameters that differ. A
    cause is a dict: error (of its first configuration), count, keys (MOST_KEYS at most), shared (a sentence about the
    parameter that sets them apart from the others, or None), kind (a word of HELP, or 'other') and help (or None).
    """
    groups: dict[str, list[Row]] = {}
    for c in configurations:
        if c["status"] == "failed":
            groups.setdefault(cause_of(c["reason"]), []).append(c)
    groups_of_errors = []
    for name, failed in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        kind, text = kind_of(name)
        members = {c["mst_key"] for c in failed}
        others = [c for c in configurations if c["mst_key"] not in members]
        first = _PLACE.sub("", (failed[0]["reason"] or "").strip()) or name
        groups_of_errors.append(
            {
                "error": first,
                "count": len(failed),
                "keys": sorted(members)[:MOST_KEYS],
                "shared": shared(failed, others, varied),
                "kind": kind,
                "help": text,
            }
        )
    return groups_of_errors


def shared(failed: Sequence[Row], others: Sequence[Row], varied: Sequence[str]) -> str | None:
    """What sets the parameters of `failed` apart from `others`, as a sentence; None where nothing does.

    A parameter tells if all of `failed` have one value of it, or values from a bound on, and at most half of `others` do.

    >>> def made(*rates): return [{"parameters": {"learning_rate": rate}} for rate in rates]
    >>> shared(made(1.0, 3.0), made(0.1, 0.01), ["learning_rate"])
    'All have learning_rate 1 or more, and no other has.'
    >>> shared(made(1.0, 0.01), made(0.001, 0.1, 3.0), ["learning_rate"]) is None
    True
    """
    if not others or not failed:
        return None
    candidates = []
    for name in varied:
        values = [c["parameters"].get(name) for c in failed]
        if any(value is None for value in values):
            continue
        theirs = [c["parameters"].get(name) for c in others]
        for text, hits in _tests(name, values, theirs):
            if hits <= LEAST_TOLD * len(others):
                candidates.append((hits, text))
                break  # of the tests of one parameter, the first is the plainest
    if not candidates:
        return None
    least = min(hits for hits, _ in candidates)
    texts = [text for hits, text in candidates if hits == least]
    if len(texts) > MOST_SHARED:
        return None
    count, besides = len(others), " and ".join(texts)
    who = "It has" if len(failed) == 1 else "All have"
    if least == 0:
        return f"{who} {besides}, and no other has."
    return f"{who} {besides}; so {'has' if least == 1 else 'have'} {least} of the {count} others."


def _tests(name: str, own: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[str, int]]:
    """(text, how many of `theirs` pass) of the tests of a parameter that all of `own` pass."""
    tests = []
    if len({repr(value) for value in own}) == 1:
        tests.append((f"{name} {_shown(own[0])}", sum(repr(value) == repr(own[0]) for value in theirs)))
    if all(is_number(value) for value in own):
        numbers = [value for value in theirs if is_number(value)]
        low, high = min(own), max(own)
        bounds = [
            (f"{name} {_shown(low)} or more", sum(value >= low for value in numbers)),
            (f"{name} {_shown(high)} or less", sum(value <= high for value in numbers)),
        ]
        tests.extend(sorted(bounds, key=lambda bound: bound[1]))
    return tests


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
