"""The contenders' final losses, compared: do they all train the same?

Contenders with the same rows in the same order from the same weights may differ by rounding alone. How far rounding
moves a loss depends on the configuration: some trainings forget an error, others multiply it with every update. So it
is measured: "arithmetic alone" also trains each configuration from weights with errors of the size of rounding, its
twins. A loss may differ from the reference's by

    ABSOLUTE + RELATIVE x the loss + TIMES x the largest difference that the twins have made,

and with Adam by RELATIVE_ADAM x the loss: it divides a gradient by its size, so where a gradient is 0 but for rounding, the
order in which a program sums decides on a step. The twins sum in the same order, and do not show that.

A larger difference is an error, unless `reason` states why that contender trains otherwise.
"""

import math
import statistics

REFERENCE, TWINS = "export and loop", "arithmetic alone"
ABSOLUTE, RELATIVE, RELATIVE_ADAM, TIMES = 1e-6, 1e-3, 5e-3, 30
UNSTEADY = 0.01  # relative difference of twins above which rounding alone decides on a loss


def reason(contender, configuration):
    """Why a contender's loss for a Configuration may differ by more than rounding; None if it may not."""
    if contender.startswith("pg_mop"):
        return (
            "another order of batches: rows are shuffled when they are packed, and a model visits the segments in the "
            "scheduler's order"
        )
    if contender == "MADlib's way":
        return "another order of batches: rows are shuffled when they are packed, and again at each visit"
    if contender == "PyTorch, a plain loop" and configuration.optimizer == "Adam":
        return (
            "another Adam: PyTorch adds epsilon after it has corrected the moments for their start at 0, Keras before"
        )
    return None


def allowed(configurations, figures):
    """The allowed difference of each Configuration's loss."""
    exact = figures[TWINS]["losses"]
    found = []
    for key, loss in enumerate(figures[REFERENCE]["losses"]):
        moved = max(_apart(twin[key], exact[key]) for twin in figures[TWINS]["twins"])
        relative = RELATIVE_ADAM if configurations[key].optimizer == "Adam" else RELATIVE
        found.append(ABSOLUTE + relative * abs(loss) + TIMES * moved)
    return found


def compare(configurations, figures):
    """(lines that say how the losses compare, errors) of a workload's {contender: figures}."""
    if missing := [name for name in (REFERENCE, TWINS) if name not in figures]:
        return [f"Losses are not compared: that needs the contender {missing[0]!r}."], []
    reference, bounds = figures[REFERENCE], allowed(configurations, figures)
    exact = figures[TWINS]["losses"]
    unsteady = sum(
        not max(_apart(twin[key], loss) for twin in figures[TWINS]["twins"]) <= UNSTEADY * abs(loss)
        for key, loss in enumerate(exact)
    )
    lines = [
        f"Losses, against {REFERENCE}. Rounding alone moves {unsteady} of {len(exact)} by more than {UNSTEADY:.0%}. "
        f"Allowed: {ABSOLUTE:g} + {RELATIVE:g} (Adam: {RELATIVE_ADAM:g}) x the loss + {TIMES} x what rounding has moved it."
    ]
    errors = []
    for name, own in figures.items():
        if name == REFERENCE:
            continue
        reasons = [reason(name, c) for c in configurations]
        differences = [_apart(loss, other) for loss, other in zip(own["losses"], reference["losses"])]
        strict = [key for key, why in enumerate(reasons) if why is None]
        if strict:
            wrong = [key for key in strict if not differences[key] <= bounds[key]]
            errors += [
                f"{name}: configuration {key} ends with the loss {own['losses'][key]:.6g}, {REFERENCE} with "
                f"{reference['losses'][key]:.6g}; rounding explains {bounds[key]:.2g}"
                for key in wrong
            ]
            worst = max(strict, key=lambda key: differences[key] / bounds[key] if bounds[key] < math.inf else 0.0)
            lines.append(
                f"{name}: {len(strict) - len(wrong)} of {len(strict)} equal but for rounding (nearest to the bound: "
                f"{differences[worst]:.2g}, with {bounds[worst]:.2g} allowed)."
            )
        if len(strict) == len(configurations) and own["updates"] != reference["updates"]:
            errors.append(f"{name}: {own['updates']:,} updates, {REFERENCE} {reference['updates']:,}")
        for why in dict.fromkeys(filter(None, reasons)):
            keys = [key for key, other in enumerate(reasons) if other == why]
            lines.append(
                f"{name}: {len(keys)} not compared with this bound ({why}); the median of their differences is "
                f"{_median_share(keys, differences, reference['losses']):.1%} of the loss."
            )
    return lines, errors


def _apart(one, other):
    """The difference of two losses; 0 where both are nan or the same infinity, and infinite where one is not finite."""
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other)
    return 0.0 if one == other or math.isnan(one) and math.isnan(other) else math.inf


def _median_share(keys, differences, losses):
    return statistics.median(differences[key] / abs(losses[key]) if losses[key] else math.inf for key in keys)
