"""The family tree of a search as a picture, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot
from matplotlib.lines import Line2D

from pg_mop_client.errors import ClientError
from pg_mop_client.watching import printable

GREY = "#9aa3b2"
MOST_NAMED = 150  # trials that have their numbers in the picture
LINES: dict[str, dict[str, Any]] = {  # how a child began -> style of its line
    "the parent's function": {"color": "#2f7d4f", "linestyle": "-", "linewidth": 1.4},
    "the parent's weights": {"color": "#4f86d9", "linestyle": "-", "linewidth": 1.0},
    "anew": {"color": GREY, "linestyle": ":", "linewidth": 1.0},
}


def family(data: Mapping[str, Any], ax: Any = None) -> Any:
    """The trials of a search, from left to right by generation, coloured by the run's measure; a line leads from each trial to
    those that were made from it. Raises ClientError where no trial has a lineage. Returns matplotlib's Axes."""
    run, nodes = data["run"], data.get("family") or []
    if not nodes:
        raise ClientError(
            f"no trial of run {run['run_id']} was made from another one",
            hint="mop_search with the procedure 'regularized-evolution' makes trials from others.",
        )
    height = 1.5 + 0.16 * (1 + max(node["y"] for node in nodes))
    ax = ax or pyplot.subplots(figsize=(9, height), layout="constrained")[1]
    used = {}
    for node in nodes:
        if node["parent"] is not None:
            parent, how = nodes[node["parent"]], _began(node)
            (used[how],) = ax.plot([parent["x"], node["x"]], [parent["y"], node["y"]], zorder=1, **LINES[how])
    known = [node for node in nodes if node["value"] is not None]
    unknown = [node for node in nodes if node["value"] is None]
    ax.scatter([n["x"] for n in unknown], [n["y"] for n in unknown], s=22, color=GREY, zorder=2)
    if known:
        dots = ax.scatter(
            [n["x"] for n in known], [n["y"] for n in known], s=34, c=[n["value"] for n in known], zorder=2
        )
        ax.figure.colorbar(dots, ax=ax).set_label(printable(str(data["measure"]["series"])), parse_math=False)
    for node in nodes if len(nodes) <= MOST_NAMED else ():
        ax.annotate(
            f"{node['mst_key']} (+{node['more']})" if node.get("more") else str(node["mst_key"]),
            (node["x"], node["y"]),
            (4, 0),
            textcoords="offset points",
            fontsize=6,
            va="center",
        )
    ax.set_yticks([])
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.invert_yaxis()
    ax.set_xlabel("generation")
    title = printable(f"run {run['run_id']}: {run['model_output_table']}")
    ax.set_title(title[:160], fontsize="medium", loc="left", parse_math=False)
    if used:
        handles = [Line2D([], [], **LINES[how]) for how in LINES if how in used]
        ax.legend(
            handles, [f"began with {how}" if how != "anew" else how for how in LINES if how in used], fontsize="small"
        )
    return ax


def _began(node: Mapping[str, Any]) -> str:
    if not node["inherits"]:
        return "anew"
    return "the parent's function" if node["same"] else "the parent's weights"
