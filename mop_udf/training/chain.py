"""Training of a chain in a trainer. A chain has steps. Each step trains the models of the step before further."""

import time

from mop_udf.kernels import vmap_batch
from mop_udf.training.unit_rows import KeptRows
from mop_udf.training.unit_training import UnitTraining


def train(steps, objects, states, cache, compiled_models, device):
    """Train a chain on rows that the cache holds: (the reports of all units, step by step; the models' last states).

    `steps`: see unit_spec.steps_of; `objects`: an iterator over the pickles of the first step's custom functions;
    `states`: {stage: bytes of its state}, emptied. States are lists of buffers, as UnitTraining.run returns them. Reports have
    also `began` and `ended`, seconds before the end of the chain; `began` of the first unit is None.

    Models that may train as a vmap batch take each step together. Otherwise each model takes all its steps before the next
    model, so that its state stays in the variables of its compiled model.
    """
    count = len(steps[0])
    own_objects = [[next(objects) for _ in unit.objects] for unit in steps[0]]
    last_step = [max(n for n, step in enumerate(steps) if step[number] is not None) for number in range(count)]
    together = count > 1 and vmap_batch.is_possible(steps[0][0].kernel)
    held, ended, times, reports = [None] * count, None, {}, {}
    for numbers in [range(count)] if together else [[number] for number in range(count)]:
        own_states = {key: states.pop(key) for number in numbers if (key := steps[0][number].stage) in states}
        for position, step in enumerate(steps):
            trained = [number for number in numbers if step[number] is not None]
            if not trained:
                continue
            units = [step[number] for number in trained]
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
    for place, (began, until) in times.items():
        reports[place] |= {"began": began and ended - began, "ended": ended - until}
    return [reports[place] for place in sorted(reports)], held
