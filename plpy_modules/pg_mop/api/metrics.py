"""What a training call says of its metrics: INFO lines while it runs, columns of its output tables in the end.

`rows`: dicts as :meth:`pg_mop.catalog.Catalog.metrics` gives them.
"""

import json


def lines(iteration, iterations, seconds, rows, named):
    """The text of an iteration, which trained for `seconds`; `named(mst_key)` begins a configuration's line.

    What an earlier run has trained (None), or evaluated (`took` is None), took no time.
    """
    seconds = seconds or 0.0
    told = [f"iteration {iteration} of {iterations}: trained in {seconds:.3f} s"]
    for dataset, title in (("training", "Training set"), ("validation", "Validation set")):
        here = [r for r in rows if r["dataset"] == dataset]
        if here:
            took = {r["stage"]: r["took"] or 0.0 for r in here}  # once for all that share it
            told.append(f"{title} (evaluated in {sum(took.values()):.3f} s):")
            told += [f"  {named(r['mst_key'])}metric={r['metric']}, loss={r['loss']}" for r in here]
    return "\n".join(told)


def columns(rows, validated, absent, kept=None):
    """The metrics of one configuration as {column: (SQL type, value)}.

    `validated`: there is a validation table; `absent`: stands for a metric that was not asked for; `kept`: the
    iteration whose state is written (None: the last).
    """
    made, everything = {}, {}
    for dataset in ("training", "validation"):
        here = [m for m in rows if m["dataset"] == dataset]
        if not here:
            continue
        final = next((n for n, m in enumerate(here) if m["iteration"] == kept), -1)
        metrics = [absent if m["metric"] is None else m["metric"] for m in here]
        losses = [m["loss"] for m in here]
        made.update({f"{dataset}_metrics": ("float8[]", metrics if metrics[0] is not None else None),
                     f"{dataset}_loss": ("float8[]", losses),
                     f"{dataset}_metrics_final": ("float8", metrics[final]),
                     f"{dataset}_loss_final": ("float8", losses[final])})
        everything[dataset] = {name: [m["metrics"].get(name) for m in here] for name in here[0]["metrics"] or ()}
        if dataset == ("validation" if validated else "training"):
            made["metrics_elapsed_time"] = ("float8[]", [m["seconds"] for m in here])
    if any(everything.values()):
        made["all_metrics"] = ("json", json.dumps(everything))
    return made
