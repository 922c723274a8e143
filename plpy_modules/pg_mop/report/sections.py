"""The sections of a run's report, in its order: the page of a report and the live page derive from this list.

The live page's package has a link to this module, which therefore imports nothing of pg_mop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """A section of a report. With a `script`, a file of this folder, it is a picture; page.py writes the others.

    `shown`, `whole`: the keys of the report's data that the section needs, each with its value where there is nothing to show:
    of the shown configurations, and of all that the run has. `gathered`: whether `add(db, data)` of the module with the
    section's name reads these data. `sampled`: which part of the data's `sampled` its note tells; "": that of its own name.
    `only_with`: the key without whose values there is no section.

    On the live page: `place`: where it stands, a comment of shell.html; `beside`: beside its neighbour that is `beside`, too;
    `hint`: a text below the title; `below`: the id of an element below the picture.
    """

    name: str
    title: str
    script: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    gathered: bool = False
    sampled: str = ""
    only_with: str = ""
    place: str = ""
    beside: bool = False
    hint: str = ""
    below: str = ""


SECTIONS = (
    Section("leaderboard", "Leaderboard"),
    Section(
        "curves",
        "Learning curves",
        "curves.js",
        shown={"curves": {}, "times": {}},
        whole={"series": []},
        gathered=True,
        place="top",
    ),
    Section("next", "What next"),
    Section("failures", "Failures", shown={"failed_units": []}, gathered=True),
    Section("slices", "Each parameter and the result", "slices.js", whole={"spread": None}, place="parameters"),
    Section("parallel", "Parameters and result", "parallel.js", place="parameters"),
    Section("edf", "Distribution of results", "results.js", place="results", beside=True),
    Section("pareto", "Two measures", "results.js", sampled="parallel", place="results", beside=True),
    Section(
        "family",
        "Family tree",
        "family.js",
        whole={"family": []},
        gathered=True,
        only_with="family",
        place="family",
        hint="Each trial of the search to the right of the one that it was made from. Arrow keys follow the lines, Home goes "
        "to the best trial, Enter marks one.",
    ),
    Section(
        "sessions",
        "Worker sessions",
        "page.js",
        shown={"lanes": [], "bars": [], "merged_bars": False},
        place="time",
        below="time",
    ),
    Section("time", "Where the time went", shown={"time": [], "makespan": 0.0, "paused_seconds": 0.0}),
    Section("stages", "Stages", "page.js", shown={"stages": []}, gathered=True, place="time"),
    Section("asked", "What was asked"),
    Section("settings", "Parameters and settings"),
    Section("repeat", "SQL to repeat it"),
)
PICTURES = tuple(section for section in SECTIONS if section.script is not None)
SHOWN = {key: value for section in SECTIONS for key, value in section.shown.items()}
WHOLE = {key: value for section in SECTIONS for key, value in section.whole.items()}
# the scripts, in the order in which they run: tools, pictures, tables and the strip
DRAWING = tuple(
    dict.fromkeys(["page.js", "axes.js", *(str(picture.script) for picture in PICTURES), "tables.js", "strip.js"])
)
