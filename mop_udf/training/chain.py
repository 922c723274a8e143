"""Training of a chain in a trainer. A chain has steps. Each step trains the models of the step before further."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mop_udf.data import Cache
from mop_udf.kernels import vmap_batch
from mop_udf.training.model_cache import ModelCache
from mop_udf.training.unit_rows import KeptRows
from mop_udf.training.unit_training import Report, UnitTraining
from mop_udf.unit_spec import TrainerUnit


def train(
    steps: Sequence[Sequence[TrainerUnit | None]],
    objects: Iterator[Any],
    states: dict[int, Any],
    cache: Cache,
    compiled_models: ModelCache,
    device: Sequence[Any],
) -> tuple[list[Report], list[Any]]:
    """Train a chain on rows that the cache holds: (the reports of all units, step by step; the models' last states).

    `steps`: see unit_spec.steps_of; `objects`: an iterator over the pickles of the first step's custom functions;
    `states`: {stage: bytes of its state}, emptied. States are lists of buffers, as UnitTraining.run returns them. Reports have
    also `began` and `ended`, seconds before the end of the chain; `began` of the first unit is None.

    Models that may train as a vmap batch take each step together. Otherwise each model takes all its steps before the next
    model, so that its state stays in the variables of its compiled model.
    """
    first = [unit for unit in steps[0] if unit is not None]  # (all of them: a later step may leave one out)
    count = len(first)
    own_objects = [[next(objects) for _ in unit.objects] for unit in first]
    last_step = [max(n for n, step in enumerate(steps) if step[number] is not None) for number in range(count)]
    together = count > 1 and vmap_batch.is_possible(first[0].kernel)
    held: list[Any] = [None] * count
    ended: float | None = None
    times: dict[tuple[int, int], tuple[float | None, float]] = {}
    reports: dict[tuple[int, int], Report] = {}
    for numbers in [range(count)] if together else [[number] for number in range(count)]:
        own_states = {key: states.pop(key) for number in numbers if (key := first[number].stage) in states}
        for position, step in enumerate(steps):
            trained = [number for number in numbers if step[number] is not None]
            units = [unit for number in numbers if (unit := step[number]) is not None]
            if not units:
                continue
            training = UnitTraining(
                units,
                iter([data for number in trained for data in own_objects[number]]),
                own_states,
                KeptRows(cache, units[0]),
                cache,
                compiled_models,
                device,
                [held[number] for number in trained],
            )
            made, found = training.run(
                [position < last_step[number] for number in trained], stays=not together, alone=count == 1
            )
            began, ended = ended, time.monotonic()
            for number, report, state in zip(trained, made, found):
                reports[position, number], times[position, number], held[number] = report, (began, ended), state
    end = max(until for _, until in times.values())
    for place, (before, until) in times.items():
        reports[place] |= {"began": before and end - before, "ended": end - until}
    return [reports[place] for place in sorted(reports)], held
