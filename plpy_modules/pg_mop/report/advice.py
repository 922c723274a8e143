"""What to do next with a run: statements that follow from its curves, its times and its space. Pure Python.

`next_steps` returns the steps, the most valuable first. A step is a dict: kind (a word), say (a sentence) and sql (a statement
that a user may copy; None where there is nothing to run).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_mop.report.again import ModelRow, call, clipped, literal, named_anew, train_rows, with_value
from pg_mop.report.causes import cause_of, kind_of
from pg_mop.report.numbers import is_number
from pg_mop.report.widening import beyond, wider_space

Row = Mapping[str, Any]
Step = dict[str, Any]

MOST_NAMED = 3  # configurations in a step
BEST = 10  # only configurations of these ranks are worth more iterations
LEAST_EVALUATIONS = 3  # of a curve, for a statement about its shape
GAIN = 0.05  # part of a curve's whole gain that its last third must have, to say that it still improves
LEAST_TRIED = 6  # configurations, for a statement about the edge of a space
LEAST_SECONDS = 10.0  # of the trainers' time, for a statement about it
MUCH = 0.4  # part of the time that is much
MORE = (
    "madlib_keras_fit_multiple_model",
    "mop_search",
    "madlib_keras_automl",
)  # runs whose configurations mop_more trains


@dataclass(frozen=True)
class Facts:
    """What is known of a run.

    `configurations`: by rank, dicts with mst_key, model_id, compile_params, fit_params, status, parameters, iterations and
    curve ([[iteration, value], ...] of the measure); `measure`: {'series', 'goal'}; `seconds`: of the trainers, by purpose
    (train, evaluate, ready), and `idle` of the sessions; `causes`: of failures (report/causes.py); `own`: the reader is the
    run's owner, who alone may steer it.
    """

    run: Row
    schema: str
    gets: str
    configurations: Sequence[Row]
    measure: Mapping[str, str]
    varied: Sequence[str] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    arch_table: str | None = None
    object_table: str | None = None
    own: bool = True
    seconds: Mapping[str, float] = field(default_factory=dict)
    sessions: int = 0
    causes: Sequence[Row] = ()

    @property
    def running(self) -> bool:
        return self.run["status"] == "running"

    @property
    def sign(self) -> int:
        """1 where more of the measure is better, else -1."""
        return 1 if self.measure["goal"] == "max" else -1

    def judged(self) -> list[Row]:
        """The configurations with a value of the measure that have not failed."""
        return [c for c in self.configurations if c["status"] != "failed" and c["curve"]]


def next_steps(facts: Facts) -> list[Step]:
    """The steps that follow from the facts; none of a run on another server's behalf."""
    if facts.run["function"] == "remote_run":
        return []
    rules = (_resume, _failures, _stop, _more, _edge, _better_before, _ready, _evaluations, _idle)
    return [step for rule in rules for step in rule(facts)]


def _names(configurations: Sequence[Row]) -> str:
    keys = [str(c["mst_key"]) for c in configurations]
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"


def _may_resume(facts: Facts) -> bool:
    """True if the owner looks at a run that did not end, and if it is not the configurations' fault: where all of them have
    failed by errors of their own, they would fail again."""
    if not facts.own or facts.run["status"] not in ("failed", "cancelled"):
        return False
    # of an interrupted run, configurations without an error are shown as failed, too
    to_blame = [
        c
        for c in facts.configurations
        if c["status"] == "failed" and c["reason"] and kind_of(cause_of(c["reason"]))[0] != "lost"
    ]
    return not facts.configurations or len(to_blame) < len(facts.configurations)


def _resume(facts: Facts) -> Iterator[Step]:
    if _may_resume(facts):
        how = "failed" if facts.run["status"] == "failed" else "was cancelled"
        yield {
            "kind": "resume",
            "say": f"The run {how}. Its finished units are kept: go on with it.",
            "sql": f"SELECT {facts.schema}.mop_resume({facts.run['run_id']});",
        }


def _failures(facts: Facts) -> Iterator[Step]:
    """The failed configurations once more, changed so that they may not fail again."""
    for cause in facts.causes:
        if cause["kind"] not in ("diverged", "memory") or (new_training := _trained_anew(facts, cause)) is None:
            continue
        sql, count = new_training
        which = "" if count == cause["count"] else f" {count} of them"
        if cause["kind"] == "diverged":
            how = "with clipped gradients and a tenth of the rate"
            say = f"The loss of {_some(cause['count'])} became NaN: train{which} {how}."
        else:
            say = f"{_some(cause['count']).capitalize()} needed too much memory: train{which} with half the batch size."
        yield {"kind": "clip" if cause["kind"] == "diverged" else "smaller", "say": say, "sql": sql}


def remedy(facts: Facts, cause: Row) -> str | None:
    """SQL that helps against a cause of failures (report/causes.py); None where none is known."""
    if cause["kind"] == "lost":
        return f"SELECT {facts.schema}.mop_resume({facts.run['run_id']});" if _may_resume(facts) else None
    advice = _trained_anew(facts, cause)
    return None if advice is None else advice[0]


def _trained_anew(facts: Facts, cause: Row) -> tuple[str, int] | None:
    """(SQL that trains configurations of a cause of failures anew, changed so that they may not fail again; the number of
    these configurations); None where no change is known."""
    by_key = {c["mst_key"]: c for c in facts.configurations}
    failed = [by_key[key] for key in cause["keys"] if key in by_key]
    if facts.arch_table is None:
        return None
    rows = []
    for c in failed:
        compile_params, fit_params = c["compile_params"], c["fit_params"] or ""
        if cause["kind"] == "diverged" and (changed := clipped(compile_params)) is not None:
            rate = c["parameters"].get("learning_rate")
            slower = with_value(changed, "learning_rate", rate / 10) if is_number(rate) else None
            rows.append((c["model_id"], slower or changed, fit_params))
        size = c["parameters"].get("batch_size")
        halves = cause["kind"] == "memory" and isinstance(size, int) and size > 1
        if halves and (changed := with_value(fit_params, "batch_size", size // 2)) is not None:
            rows.append((c["model_id"], compile_params, changed))
    if not rows:
        return None
    sql, trained = _train(facts, rows, "_clipped" if cause["kind"] == "diverged" else "_smaller")
    count = sum(row in trained for row in rows)
    note = "" if count == cause["count"] else f"-- trains {count} of the {cause['count']} configurations\n"
    return note + sql, count


def _train(facts: Facts, rows: Sequence[ModelRow], suffix: str) -> tuple[str, set[ModelRow]]:
    """(SQL that trains rows as the run did, into tables named with `suffix`; the rows that it trains)."""
    assert facts.arch_table is not None
    return train_rows(
        facts.run, facts.arch_table, rows, suffix, facts.schema, facts.gets, facts.arguments, facts.object_table
    )


def _some(count: int) -> str:
    return "1 configuration" if count == 1 else f"{count} configurations"


def _stop(facts: Facts) -> Iterator[Step]:
    """While the run goes on: the configurations that have not improved for half of their evaluations."""
    if not facts.running or not facts.own:
        return
    idle = []
    for c in facts.judged():
        values = [facts.sign * value for _, value in c["curve"]]
        best = max(range(len(values)), key=values.__getitem__)
        since = len(values) - 1 - best
        if c["status"] in ("running", "waiting") and c["rank"] > 1 and since >= max(LEAST_EVALUATIONS, len(values) / 2):
            idle.append((c, c["curve"][best][0], c["curve"][-1][0]))
    if idle:
        worst = idle[-MOST_NAMED:]
        since = worst[-1][1]
        which = (
            f"Configuration {worst[0][0]['mst_key']} has not improved since iteration {since} of {worst[0][2]}: stop it."
            if len(worst) == 1
            else f"Configurations {_names([c for c, _, _ in worst])} have not improved for half of their iterations: "
            "stop them."
        )
        yield {
            "kind": "stop",
            "say": which,
            "sql": "\n".join(
                f"SELECT {facts.schema}.mop_stop_trial({facts.run['run_id']}, {c['mst_key']});" for c, _, _ in worst
            ),
        }


def still_improves(curve: Sequence[Sequence[float]], sign: int) -> bool:
    """True if the last value of a curve is its best one, and the last third of the curve has a part of the whole gain.

    `curve`: [[iteration, value], ...]; `sign`: 1 where more is better, else -1.

    >>> still_improves([[1, 0.5], [2, 0.7], [3, 0.8], [4, 0.9]], 1)
    True
    >>> still_improves([[1, 0.5], [2, 0.9], [3, 0.9], [4, 0.9]], 1)
    False
    """
    values = [sign * value for _, value in curve]
    if len(values) < LEAST_EVALUATIONS or values[-1] < max(values):
        return False
    whole = values[-1] - values[0]
    late = values[-1] - values[-1 - max(1, len(values) // 3)]
    return whole > 0 and late >= GAIN * whole


def _more(facts: Facts) -> Iterator[Step]:
    if facts.run["status"] != "finished" or facts.run["function"] not in MORE or not facts.arguments:
        return
    if facts.arguments.get("folds") or not facts.own:
        return
    rising = [
        c
        for c in facts.judged()[:BEST]
        if c["status"] == "finished" and still_improves(c["curve"], facts.sign)
    ]  # fmt: skip
    if not rising:
        return
    best = rising[:MOST_NAMED]
    more = max(1, round(max(c["iterations"] for c in best) / 2))
    count = f"{len(rising)} of the {min(BEST, len(facts.judged()))} best configurations"
    yield {
        "kind": "more",
        "say": f"{count} still improved at the end: train {'it' if len(best) == 1 else _names(best)} for {more} more "
        f"iteration{'s' * (more > 1)}.",
        "sql": "\n".join(
            f"SELECT {facts.schema}.mop_more({facts.run['run_id']}, {c['mst_key']}, {more});" for c in best
        ),
    }


def _edge(facts: Facts) -> Iterator[Step]:
    """The best configuration has a parameter at the edge of what was tried."""
    judged = facts.judged()
    if facts.running or len(judged) < LEAST_TRIED:
        return
    best = judged[0]
    space = facts.arguments.get("space") if facts.run["function"] == "mop_search" else None
    if space is not None:
        space_and_names = wider_space(space, best["parameters"])
        if space_and_names is None:
            return
        names, wider = space_and_names
        output = named_anew(facts.run["model_output_table"], "_wider")
        arguments = {
            **facts.arguments,
            "model_output_table": output,
            "space": wider,
            "continue_from": None if facts.arguments.get("folds") else facts.run["run_id"],
            "name": None,
            "description": None,
        }
        yield {
            "kind": "wider",
            "say": f"{_listed(names)} of the best configuration {'is' if len(names) == 1 else 'are'} at the edge of the "
            "space: search a wider one.",
            "sql": call(facts.schema, "mop_search", arguments, facts.gets),
        }
        return
    for name in facts.varied:
        values = {v for c in judged if is_number(v := c["parameters"].get(name))}
        value = best["parameters"].get(name)
        new = beyond(name, value, sorted(values)) if is_number(value) else None
        if new is None or facts.arch_table is None:
            continue
        compile_params = with_value(best["compile_params"], name, new)
        fit_params = with_value(best["fit_params"] or "", name, new)
        if (compile_params is None) == (fit_params is None):
            continue
        row = best["model_id"], compile_params or best["compile_params"], fit_params or best["fit_params"] or ""
        yield {
            "kind": "wider",
            "say": f"{name} {value:.4g} of the best configuration is the {'least' if new < value else 'greatest'} that was "
            f"tried: try {new:.4g}.",
            "sql": _train(facts, [row], "_wider")[0],
        }
        return


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _better_before(facts: Facts) -> Iterator[Step]:
    """A configuration was clearly better in an earlier iteration than the best one is at its end."""
    judged = facts.judged()
    if facts.running or not judged or not facts.arguments or "space" in facts.arguments:
        return
    now = facts.sign * judged[0]["curve"][-1][1]
    best, when, value = max(
        ((c, i, v) for c in judged for i, v in c["curve"]), key=lambda point: facts.sign * point[2]
    )  # fmt: skip
    spread = max(abs(v) for _, v in best["curve"]) or 1.0
    if when == best["curve"][-1][0] or facts.sign * value - now < 0.01 * spread or facts.arch_table is None:
        return
    fit_params = f"{best['fit_params'] or ''}, keep='best'".strip(", ")
    if "keep" in (best["fit_params"] or ""):
        return
    yield {
        "kind": "keep",
        "say": f"Configuration {best['mst_key']} was best after iteration {when} ({value:.4g}) and got worse since: keep "
        "its best state.",
        "sql": _train(facts, [(best["model_id"], best["compile_params"], fit_params)], "_kept")[0],
    }


def _ready(facts: Facts) -> Iterator[Step]:
    spent = sum(facts.seconds.get(name, 0.0) for name in ("train", "evaluate", "ready"))
    ready = facts.seconds.get("ready", 0.0)
    if spent >= LEAST_SECONDS and ready >= MUCH * spent:
        yield {
            "kind": "ready",
            "say": f"{ready / spent:.0%} of the trainers' time went into making nets ready. Trainers that stay take it "
            "once: the next run of these nets finds them.",
            "sql": "SET pg_mop.session_idle_timeout = '1h';",
        }


def _evaluations(facts: Facts) -> Iterator[Step]:
    spent = sum(facts.seconds.get(name, 0.0) for name in ("train", "evaluate", "ready"))
    part = facts.seconds.get("evaluate", 0.0)
    if spent < LEAST_SECONDS or part < MUCH * spent or not facts.arguments.get("metrics_compute_frequency"):
        return
    every = facts.arguments["metrics_compute_frequency"]
    rarer = min(facts.run["num_iterations"], 5 * int(every))
    if rarer <= every:
        return
    arguments = {
        **facts.arguments,
        "model_output_table": named_anew(facts.run["model_output_table"], "_again"),
        "metrics_compute_frequency": rarer,
        "name": None,
        "description": None,
    }
    yield {
        "kind": "evaluations",
        "say": f"{part / spent:.0%} of the trainers' time went into evaluations: evaluate every {rarer} iterations.",
        "sql": call(facts.schema, facts.run["function"], arguments, facts.gets),
    }


def _idle(facts: Facts) -> Iterator[Step]:
    busy, idle = facts.seconds.get("busy", 0.0), facts.seconds.get("idle", 0.0)
    if facts.running or facts.sessions < 2 or busy < LEAST_SECONDS or idle < MUCH * (busy + idle):
        return
    enough = max(1, math.ceil(facts.sessions * busy / (busy + idle)))
    if enough < facts.sessions:
        yield {
            "kind": "idle",
            "say": f"The {facts.sessions} worker sessions idled for {idle / (busy + idle):.0%} of the time: {enough} would "
            "have done, or more configurations at once.",
            "sql": f"SET pg_mop.sessions = {literal(enough)};",
        }
