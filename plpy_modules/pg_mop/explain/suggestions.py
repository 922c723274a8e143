"""Settings that make a call faster by its prediction: the plan is made again with each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pg_mop.call.planned_run import PlannedRun
from pg_mop.schedule.predicted import Prediction

SAVES = 0.9  # a suggestion takes at most this share of the time
MOST_SUGGESTIONS = 3


def suggestions(
    preview: PlannedRun, found: Prediction, with_settings: Callable[[Mapping[str, Any]], Prediction]
) -> list[dict[str, Any]]:
    """Statements that make an explained call faster by its prediction (`found`), each with its effect; those that save most
    first. `with_settings`: the prediction with other settings."""
    if not found.simulated or not found.units:
        return []
    options = preview.planner.workload.options
    tried: list[tuple[str, dict[str, Any]]] = []
    own = preview.earlier is None  # (a replay has the scheduler and the sharing of the run that it repeats)
    if own and options["scheduler"] != "longest-first" and not preview.spec.averaging:
        tried.append(("SET pg_mop.scheduler = 'longest-first';", {"scheduler": "longest-first"}))
    if preview.wanted > 1:
        tried.append((f"SET pg_mop.sessions = {preview.wanted // 2};", {"sessions": preview.wanted // 2}))
    full = len(preview.planner.workload.keys("training"))
    if options["sessions"] is not None and options["sessions"] < min(full, preview.servers[None].info["cores"]):
        tried.append(("RESET pg_mop.sessions;", {"sessions": None}))
    if not options["chain_seconds"]:
        tried.append(("RESET pg_mop.chain_seconds;", {"chain_seconds": 0.5}))
    if own and not options["sharing"]:
        tried.append(("RESET pg_mop.sharing;", {"sharing": True}))
    if not options["cache_mb"]:
        tried.append(("RESET pg_mop.cache_mb;", {"cache_mb": 1024}))
    better: list[dict[str, Any]] = []
    for statement, changes in tried:
        other = with_settings(changes)
        if other.seconds < SAVES * found.seconds:
            better.append({"statement": statement, "seconds": other.seconds, "saves": found.seconds - other.seconds})
    return sorted(better, key=lambda one: -one["saves"])[:MOST_SUGGESTIONS]
