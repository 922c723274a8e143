"""The chosen models of mop_train, trained again: on the training and the validation rows together, with their parameters and
for as many passes or rounds as before. The shares of an ensemble's members stay.

Where time splits the rows, the latest ones measure, and then train, too: rows to come resemble them most."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mop_udf.aggregate import Session
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.tables import boosting, linear, perceptrons, time_shares, trained
from pg_mop.api.tables.ensembles import MOST_ROWS, Ensemble, Member, Others, Rows
from pg_mop.api.tables.steps import Steps
from pg_mop.backend import weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal, written
from pg_mop.columns import Transform

ENDS_OF_SELECTION = ("", "_summary")  # of the names of the tables of a selection
ENDS_OF_MODELS = ("", "_info", "_summary", weights.SUFFIX)
PARTS, ALL_PARTS = ("train", "valid"), ("train", "valid", "test")  # that are trained on again; that are, at last
MOST_RUNS = 3  # of nets: those of a run have as many passes
START = 1.5  # seconds that packing and a run of nets take, beside training


class Call(Protocol):
    """What training again needs of the call of mop_train. It is here so that this module does not import that of the call."""

    db: Database
    times: time_shares.TimeShares

    def ref(self, name: str, suffix: str = "") -> str: ...

    def used_rows(self, part: str) -> int: ...

    def pack(self, steps: Steps, part: str, output: str, given: dict[str, Any]) -> None: ...

    def say(self, steps: Steps, sql: str, made: list[str] | None = None, quiet: bool = False) -> None: ...


def without_nets(
    db: Database,
    session: Session,
    packed_text: str,
    rows: Rows,
    more: Sequence[trained.Target],
    members: Ensemble,
    others: Others,
    seconds: float,
) -> list[int]:
    """Train trees, linear models and perceptrons again, each on as many rows of the training table as before, on the
    validation `rows` and on `more`; returns how many rows each of them was trained on. What has taken longer than `seconds`
    allow stays as it is, and so does a family that cannot be trained, with a WARNING. `others`: the candidates."""
    added = [rows.target, *more]
    count = sum(len(own.truth) for own in added)
    chosen, trained_on, found = defaultdict[str, list[Member]](list), dict[int, trained.Target](), list[int]()
    for member in members.members:  # those with the most weight first
        if member.family == trained.NETS:
            continue
        own = others[member.family].rows
        needed = (own + count) / max(1, own) * member.info["seconds"]
        if needed <= seconds:
            chosen[member.family].append(member)
            seconds -= needed
    for family, again in chosen.items():
        used = others[family].rows
        try:
            if used not in trained_on:
                trained_on[used] = _joined(db, packed_text, added, used, rows.is_balanced)
            _train_again(db, session, family, again, trained_on[used], others[family].transform, rows)
        except MopError as error:
            text = f"the family {family} is not trained again: {error.message}"
            db.warning(text, detail=error.detail, hint=error.hint)
        else:
            found += [len(trained_on[used].truth)] * len(again)
    return found


def _joined(
    db: Database, packed_text: str, added: Sequence[trained.Target], used: int, is_balanced: bool
) -> trained.Target:
    """So many rows of the training table, and others."""
    target = trained.read_target(db, packed_text, used, is_balanced)
    for own in added:
        target = target.joined(own, is_balanced)
    return target


def _train_again(
    db: Database,
    session: Session,
    family: str,
    members: Sequence[Member],
    training: trained.Target,
    transform: Transform,
    rows: Rows,
) -> None:
    infos = [member.info for member in members]
    if family == trained.BOOSTING:
        texts = boosting.refit(db, session, transform, training, infos, rows.metric)
        for member, text in zip(members, texts, strict=True):
            member.content, member.size = text, len(text)
        return
    nets = linear.refit if family == trained.LINEAR else perceptrons.refit
    for member, (net, content) in zip(members, nets(db, session, transform, training, infos, rows.metric), strict=True):
        member.architecture, member.content = net, content


@dataclass(frozen=True)
class Trial:
    """A trial of a search of nets, which is trained again. `key`: its number there."""

    key: int
    model_id: int
    compile_params: str
    fit_params: str
    iterations: int

    @property
    def params(self) -> tuple[str, str]:
        return self.compile_params, self.fit_params


@dataclass
class Run:
    """Trials that one run trains again, for as many `iterations`, and the names of its tables."""

    iterations: int
    trials: list[Trial]
    selection: str
    output: str


def runs_of(trials: Sequence[Trial], weights: Sequence[float], names: Callable[[str, int], str]) -> list[Run]:
    """The runs that train trials again, those with the most weight first, at most MOST_RUNS. `names`: of a run's tables, by
    'chosen' or 'refit' and its number.

    >>> trials = [Trial(1, 1, "a", "f", 9), Trial(2, 1, "b", "f", 27), Trial(3, 2, "c", "f", 27)]
    >>> [(run.iterations, len(run.trials), run.output) for run in runs_of(trials, [0.5, 0.3, 0.3], "{0}_{1}".format)]
    [(27, 2, 'refit_1'), (9, 1, 'refit_2')]
    """
    groups: dict[int, list[Trial]] = defaultdict(list)
    shares: dict[int, float] = defaultdict(float)
    for trial, weight in zip(trials, weights, strict=True):
        groups[trial.iterations].append(trial)
        shares[trial.iterations] += weight
    order = sorted((count for count in groups if count), key=lambda count: -shares[count])[:MOST_RUNS]
    return [
        Run(count, groups[count], names("chosen", number), names("refit", number))
        for number, count in enumerate(order, 1)
    ]


def seconds_of(trials: Sequence[Trial], passes: int, seconds: float, growth: float) -> float:
    """The seconds that training again takes, roughly. `passes`: of all trials of the search, which took `seconds`; `growth`:
    how many times as many rows there are."""
    return START + growth * seconds * sum(trial.iterations for trial in trials) / max(1, passes)


def run(
    call: Call,
    steps: Steps,
    session: Session,
    n: dict[str, str],
    rows: Rows | None,
    members: Ensemble | None,
    best: tuple[str, int],
    trial: int,
    others: Others,
    parts: Sequence[str] = PARTS,
) -> tuple[dict[str, Any], tuple[str, int]]:
    """Train the chosen models of a call again, as far as its time allows: (what `details` say of it, the place of the best
    model). `members`: None where that answers alone; `trial`: its number in the search; `others`: those that were
    candidates; `parts`: PARTS, or ALL_PARTS. Raises MopError."""
    seconds = call.times.begin(time_shares.REFIT if parts == PARTS else time_shares.FINAL)
    until, of = time.monotonic() + seconds, 1 if members is None else len(members.members)
    everything, used = sum(map(call.used_rows, parts)), list[int]()
    try:
        if members is not None and rows is not None:
            more: list[trained.Target] = []
            if "test" in parts and any(member.family != trained.NETS for member in members.members):
                call.pack(steps, n["test"], n["tested"], {"fitted_on": n["packed"]})
                more.append(trained.read_target(call.db, n["tested"], MOST_ROWS, rows.is_balanced))
            used += without_nets(call.db, session, n["packed"], rows, more, members, others, seconds)
            session.give_back()  # the nets may need the trainer
        nets = [] if members is None else [member for member in members.nets if member.model is not None]
        of_trials = {trial: 1.0} if members is None else {member.key: member.weight for member in nets}
        places = _nets(call, steps, n, parts, of_trials, until - time.monotonic()) if of_trials else {}
        with call.db.undone():
            for member in nets:
                if member.key in places:
                    member.model = StoredModel(call.db, *places[member.key])
                    member.model.weights = None
        used += [everything] * len(places)
        if members is None:
            best = places.get(trial, best)
    except MopError as error:
        call.db.warning(f"not all models are trained again: {error.message}", detail=error.detail, hint=error.hint)
    if len(used) < of:
        added = "the validation rows" if parts == PARTS else "the test rows, too"
        call.times.left_out.append(f"training {of - len(used)} of the {of} models again with {added}")
    return ({"rows": min(used), "of_rows": everything, "models": len(used), "of": of} if used else {}), best


def _nets(
    call: Call, steps: Steps, n: dict[str, str], parts: Sequence[str], weights_of: dict[int, float], seconds: float
) -> dict[int, tuple[str, int]]:
    """Train trials of the search again on `parts`, those with the most weight first, as far as `seconds` allow: {trial:
    (model table, mst_key)}."""
    packed = n["all"] if parts == PARTS else n["whole"]
    table = call.ref(n["search"], "_trials")
    columns = "mst_key, model_id, compile_params, fit_params, iterations"
    keys = ", ".join(map(str, weights_of))
    trials = [Trial(*row) for row in steps.run(f"SELECT {columns} FROM {table} WHERE mst_key IN ({keys})")]
    ((passes,),) = steps.run(f"SELECT sum(iterations) FROM {table}")
    growth = sum(map(call.used_rows, parts)) / call.used_rows("train")
    took = call.times.seconds[time_shares.NETS]
    while trials and seconds_of(trials, int(passes or 0), took, growth) > seconds:
        trials.remove(min(trials, key=lambda trial: weights_of[trial.key]))
    runs = runs_of(
        trials,
        [weights_of[trial.key] for trial in trials],
        lambda what, number: call.db.suffixed(packed, f"_{what}_{number}"),
    )
    if runs:
        rows = " UNION ALL ".join(f"SELECT * FROM {call.ref(n[part])}" for part in parts)
        call.pack(steps, rows, packed, {"fitted_on": n["packed"]})
    places: dict[int, tuple[str, int]] = {}
    for one in runs:
        _fit(call, steps, n["nets"], packed, one)
        listed = steps.run(
            f"SELECT mst_key, model_id, compile_params, fit_params FROM {call.ref(one.output, '_info')} i "
            f"JOIN {call.ref(one.output)} m USING (mst_key) WHERE m.model_weights IS NOT NULL"
        )
        key_of = {tuple(values): key for key, *values in listed}
        for trial in one.trials:
            key = key_of.get((trial.model_id, trial.compile_params, trial.fit_params))
            if key is not None:
                places[trial.key] = one.output, key
    return places


def _fit(call: Call, steps: Steps, nets: str, packed: str, run: Run) -> None:
    """Train the trials of a run on a packed table, by statements that the report shows."""
    first, *more = run.trials
    lists = [f"ARRAY[{first.model_id}]", *(f"ARRAY[{quote_literal(text)}]" for text in first.params)]
    names = [quote_literal(nets), quote_literal(run.selection)]
    schema, suffixed = written(call.db.schema), call.db.suffixed
    sql = f"SELECT {schema}.load_model_selection_table({', '.join([*names, *lists])});"
    if more:
        rows = (f"({one.model_id}, {', '.join(map(quote_literal, one.params))})" for one in more)
        sql += f" INSERT INTO {call.ref(run.selection)} (model_id, compile_params, fit_params) VALUES {', '.join(rows)}"
        sql += " ON CONFLICT DO NOTHING;"  # (equal trials are one)
    call.say(steps, sql, [suffixed(run.selection, end) for end in ENDS_OF_SELECTION], True)
    names = [quote_literal(name) for name in (packed, run.output, run.selection)]
    sql = f"SELECT {schema}.madlib_keras_fit_multiple_model({', '.join(names)}, {run.iterations}, false, "
    sql += f"metrics_compute_frequency => {run.iterations});"
    call.say(steps, sql, [suffixed(run.output, end) for end in ENDS_OF_MODELS], True)


def relations(db: Database, name: str) -> list[str]:
    """The names of the tables that training again on the packed table `name` may make."""
    tables: list[str] = []
    for number in range(1, MOST_RUNS + 1):
        tables += [db.suffixed(name, f"_chosen_{number}{end}") for end in ENDS_OF_SELECTION]
        tables += [db.suffixed(name, f"_refit_{number}{end}") for end in ENDS_OF_MODELS]
    return tables
