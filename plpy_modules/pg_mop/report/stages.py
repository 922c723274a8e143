"""The tree of stages of a run's report, and its layout: each unbranched part of the search plan is a line with a height."""

from collections.abc import Mapping, Sequence
from typing import Any

from pg_mop.backend.database import Database

MOST_PATHS = 120
Branch = tuple[list[int], int | None, int]  # mst_keys, index of the parent, stages before it


def add(db: Database, data: dict[str, Any]) -> None:
    """Add the tree of stages of the best configurations: `stages`."""
    paths = {c["mst_key"]: c["path"] for c in data["configurations"] if c["path"]}
    if len(paths) > MOST_PATHS:
        data["sampled"]["stages"] = f"the paths of the {MOST_PATHS} best of {len(paths)} configurations"
        paths = dict(list(paths.items())[:MOST_PATHS])
    data["stages"] = tree(paths)


def tree(paths: Mapping[int, Sequence[int]]) -> list[dict[str, Any]]:
    """The nodes of the tree of `paths`, {mst_key: stages from the first iteration on}; a parent is before its children.

    A node is a dict: parent (index in the list, or None), first and last iteration, keys (the configurations that share
    the node), y (height; 0 is the top).
    """
    nodes: list[dict[str, Any]] = []
    rows = 0

    def grow(keys: list[int], parent: int | None, begin: int) -> tuple[dict[str, Any], list[Branch]]:
        """The node of the stages that all of `keys` share after the first `begin` stages, and the branches below it."""
        end = begin
        while len({paths[k][end] if end < len(paths[k]) else None for k in keys}) == 1 and end < len(paths[keys[0]]):
            end += 1
        node = {"parent": parent, "first": begin + 1, "last": end, "keys": keys, "y": None}
        index = len(nodes)
        nodes.append(node)
        branches: dict[int, list[int]] = {}
        for key in keys:
            if end < len(paths[key]):
                branches.setdefault(paths[key][end], []).append(key)
        below: list[Branch] = [(branch, index, end) for branch in branches.values()]
        return node, below

    roots: dict[int, list[int]] = {}
    for key, path in paths.items():
        if path:
            roots.setdefault(path[0], []).append(key)
    # depth first, without recursion: a path may branch in each of a thousand iterations
    waiting: list[Branch] = [(keys, None, 0) for keys in reversed(roots.values())]
    while waiting:
        node, below = grow(*waiting.pop())
        if not below:
            node["y"] = rows
            rows += 1
        waiting.extend(reversed(below))
    children: dict[int | None, list[dict[str, Any]]] = {}
    for node in nodes:
        children.setdefault(node["parent"], []).append(node)
    for index in range(len(nodes) - 1, -1, -1):
        if nodes[index]["y"] is None:
            heights = [child["y"] for child in children[index]]
            nodes[index]["y"] = (min(heights) + max(heights)) / 2
    return nodes
