"""What a run is expected to take, while it begins: the cheap part of a prediction, from a sample of its stages and without a
simulation. Pure Python."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pg_mop.plan.estimates import Estimates, in_a_command, in_commands, longest_path
from pg_mop.plan.stages import Stage
from pg_mop.schedule.predicted import Prediction

SAMPLED_STAGES = 100


def outline(
    estimates: Estimates, without: Collection[int] = (), bytes_of: Callable[[Stage], int] = lambda stage: 1 << 16
) -> Prediction | None:
    """The prediction of a run whose stages are asked for; None without any. `without`: numbers of stages that earlier runs
    have trained; `bytes_of`: the size of a stage's model state."""
    planner, fixed = estimates.planner, estimates.fixed
    stages = [
        stage
        for stage in planner.plan.stages.values()
        if stage.trials and not stage.trained and stage.number not in without
    ]
    sample = stages[:: max(1, len(stages) // SAMPLED_STAGES)]
    if not sample:
        return None
    train = evaluate = longest = size = 0.0
    models: dict[Any, Stage] = {}
    last, count, evaluated = sample[0], len(stages) / len(sample), 0
    rows = sum(segment.rows for segment in planner.workload.segments.values())
    for stage in sample:
        own = planner.visits(stage) * estimates.unit(stage)
        train, size = train + own, size + bytes_of(stage)
        evaluate += estimates.evaluation(stage, rows) if stage.evaluated else 0.0
        evaluated += len(planner.workload.segments) if stage.evaluated else 0
        path = own * sum(not one.trained and one.number not in without for one in planner.plan.path(min(stage.trials)))
        if path > longest:
            longest, last = path, stage
        models.setdefault(planner.sharing.key(stage), stage)
    units = sum(map(planner.visits, sample)) * count
    found = Prediction(estimates.sessions, round(units), round(evaluated * count), start=fixed.start, end=fixed.end)
    together = in_a_command(planner.workload.options, train * count / units)
    found.work = {
        "train": train * count,
        "evaluate": evaluate * count,
        "ready": sum(map(estimates.ready, models.values())),
        **in_commands(fixed, units, evaluated * count, together, size / len(sample)),
    }
    total = sum(found.work.values())
    if estimates.deals:
        most = planner.workload.options.get("most_threads") or estimates.cores or 1
        cost = estimates.ready(last, most)
        longest = longest_path(total, longest, found.sessions, estimates.speedup(last, most), cost)
    found.path = min(last.trials), longest
    found.makespan = max(total / found.sessions, longest)
    found.lower_bound = max((found.work["train"] + found.work["evaluate"]) / found.sessions, longest)
    found.sources = sorted({estimates.net(stage).source for stage in models.values()})
    found.set_range(estimates.spread(sample))
    return found
