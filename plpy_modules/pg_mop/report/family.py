"""The family tree of a search whose trials are made from other ones: its layout, and its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.report.summary import may_read

MOST_SHOWN = 40  # characters of a value
MOST_NODES = 240


def add(db: Database, data: dict[str, Any]) -> None:
    """Add the family tree of a search: `family`."""
    nodes = of_run(db, data["run"]["run_id"], data)
    data["family"] = nodes
    if len(nodes) > MOST_NODES:
        data["family"] = shortened(nodes, data["measure"]["goal"], MOST_NODES)
        data["sampled"]["family"] = (
            f"{len(data['family'])} of {len(nodes)} trials, the best ones and those that they descend from; +2 at a trial: two "
            "others that descend from it are left out"
        )


def of_run(db: Database, run_id: int, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The nodes of a run's tree; empty where its trials have no lineage, or none that the role may read. `data`: of gather."""
    if not may_read(db, "mop_lineage"):
        return []
    # a client may have written an inheritance as deep as it likes: Python does not read it
    rows = db.execute(
        "SELECT mst_key, parent, changed, value_before, value_after, inherited, "
        "coalesce(jsonb_typeof(inheritance) = 'object' AND inheritance <> '{}', false) AS inherits, "
        "coalesce(jsonb_typeof(inheritance) = 'object' AND inheritance ->> 'same' = 'true', false) AS same "
        f"FROM {db.extension}.mop_lineage WHERE run_id = $1",
        ["bigint"],
        [run_id],
    )
    series = data["measure"]["series"]
    values = {c["mst_key"]: c["last"].get(series) for c in data["configurations"]}
    # without a model space, the first trials have no lineage of their own
    first = {row["parent"] for row in rows} & values.keys() - {row["mst_key"] for row in rows}
    rows += [{**dict.fromkeys(rows[0]), "mst_key": key, "inherits": False, "same": False} for key in sorted(first)]
    return tree(rows, values)


def tree(rows: Sequence[Mapping[str, Any]], values: Mapping[int, float | None]) -> list[dict[str, Any]]:
    """The trials of a search, each after the one that it was made from, and before that one's next child.

    `rows`: of mop_lineage, with `inherits` and `same` in place of its inheritance.
    `values`: {mst_key: the measure of a trial}. A node is a dict: mst_key; parent (index in the list,
    or None: a trial without one in this run); x, its generation; y, its height (0 is the top); changed, a text; inherits:
    whether it began with its parent's weights; same: whether with its parent's function; inherited, a text; value.

    A client may write trials that are made from each other: one of such a cycle stands as a trial without a parent.
    """
    of = {row["mst_key"]: row for row in rows}
    children: dict[int | None, list[int]] = {}
    for key in sorted(of):
        parent = of[key]["parent"]
        children.setdefault(parent if parent in of and parent != key else None, []).append(key)
    nodes: list[dict[str, Any]] = []
    reached: set[int] = set()
    waiting: list[tuple[int, int | None]] = [(key, None) for key in reversed(children.get(None, []))]
    keys = iter(sorted(of))
    while len(reached) < len(of):  # without recursion: a line may be long
        if not waiting:
            waiting.append((_in_cycle(of, next(key for key in keys if key not in reached)), None))
        key, above = waiting.pop()
        reached.add(key)
        row, below = of[key], [child for child in children.get(key, []) if child not in reached]
        nodes.append(
            {
                "mst_key": key,
                "parent": above,
                "x": 0 if above is None else nodes[above]["x"] + 1,
                "changed": _changed(row),
                "inherits": row["inherits"],
                "same": row["same"],
                "inherited": None if row["inherited"] is None else _plain(row["inherited"]),
                "value": values.get(key),
            }
        )
        waiting.extend((child, len(nodes) - 1) for child in reversed(below))
    return _with_heights(nodes)


def shortened(nodes: Sequence[Mapping[str, Any]], goal: str, most: int) -> list[dict[str, Any]]:
    """At most `most` nodes of a large tree: the best trials (`goal`: "max" or "min"), each with those that it descends from.

    A node has two more values: `more`, how many trials of its line are left out below it; and `above`, how many generations are
    left out before it, where the line of the best trial is longer than `most`.
    """
    with_value = [place for place, node in enumerate(nodes) if node["value"] is not None]
    sign = -1 if goal == "max" else 1
    with_value.sort(key=lambda place: (sign * nodes[place]["value"], nodes[place]["mst_key"]))
    places_in: set[int] = set()
    for place in [*with_value, *(place for place, node in enumerate(nodes) if node["value"] is None)]:
        line, at = [], place
        while at is not None and at not in places_in:
            line.append(at)
            at = nodes[at]["parent"]
        if len(places_in) + len(line) > most:
            places_in.update(line[:most] if not places_in else ())
            break
        places_in.update(line)
    nearest: dict[int | None, int | None] = {
        None: None
    }  # place -> the places_in trial that it descends from, itself included
    more: Counter[int | None] = Counter()
    for place, node in enumerate(nodes):
        nearest[place] = place if place in places_in else nearest[node["parent"]]
        more[nearest[place]] += place not in places_in
    places = {place: now for now, place in enumerate(sorted(places_in))}
    return _with_heights(
        [
            {
                **nodes[place],
                "parent": places.get(nodes[place]["parent"]),
                "more": more[place],
                "above": 0 if nodes[place]["parent"] in places else nodes[place]["x"],
            }
            for place in places
        ]
    )


def _with_heights(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The nodes with their heights: those without children one below the other, others in the middle of their children."""
    parents = {node["parent"] for node in nodes}
    heights = count()
    for place, node in enumerate(nodes):
        node["y"] = None if place in parents else next(heights)
    under: dict[int, list[float]] = {}
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if node["y"] is None:
            node["y"] = (min(under[place]) + max(under[place])) / 2
        if node["parent"] is not None:
            under.setdefault(node["parent"], []).append(node["y"])
    return nodes


def _in_cycle(of: Mapping[int, Mapping[str, Any]], key: int) -> int:
    """A trial of the cycle that the parents of `key` lead to."""
    keys: set[int] = set()
    while key not in keys:
        keys.add(key)
        key = of[key]["parent"]
    return key


def text(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a tree as text, in the order of the nodes."""
    last: dict[int | None, int] = {
        node["parent"]: index for index, node in enumerate(nodes)
    }  # each parent's last child
    before: list[str] = []  # of each node: what the lines below it begin with
    for index, node in enumerate(nodes):
        above = node["parent"]
        lead = "" if above is None else before[above] + ("`- " if last[above] == index else "|- ")
        before.append("" if above is None else before[above] + ("   " if last[above] == index else "|  "))
        parts = [f"{lead}{node['mst_key']}"]
        if node["value"] is not None:
            parts.append(f"{node['value']:.4g}")
        parts += [part for part in (node["changed"], node["inherited"]) if part]
        yield "  ".join(parts)


def _changed(row: Mapping[str, Any]) -> str | None:
    """What was changed, in words."""
    if row["changed"] is None:
        return None
    if row["value_before"] is None and row["value_after"] is None:
        return _cut(row["changed"])
    return f"{_cut(row['changed'])}: {_cut(row['value_before'])} -> {_cut(row['value_after'])}"


def _cut(value: str | None) -> str:
    text = "none" if value is None else _plain(value)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def _plain(value: str) -> str:
    """A text in one line, without characters that a terminal obeys."""
    return "".join(c if c.isprintable() else " " for c in value)
