"""madlib_keras_automl and hyperband_schedule, as MADlib has them (docs/contract/automl.md), on the engine of mop_search."""

import collections
import functools
import itertools

from pg_mop import search
from pg_mop.api import architectures, metrics
from pg_mop.api.fit_multiple import write_models
from pg_mop.api.output import write_models_summary
from pg_mop.api.search import Search, errors_of_search
from pg_mop.backend.database import MopError, sql_function
from pg_mop.search import SearchError, hyperband
from pg_mop.search.space import Space

FUNCTION = "madlib_keras_automl"
ARGUMENTS = (
    "source_table",
    "model_output_table",
    "model_arch_table",
    "model_selection_table",
    "model_id_list",
    "compile_params_grid",
    "fit_params_grid",
    "automl_method",
    "automl_params",
    "random_state",
    "object_table",
    "use_gpus",
    "validation_table",
    "metrics_compute_frequency",
    "name",
    "description",
    "use_caching",
)
# method -> (its parameters with their defaults, the procedure)
METHODS = {
    "hyperband": ({"R": 6, "eta": 3, "skip_last": 0}, "madlib-hyperband"),
    "hyperopt": ({"num_configs": 20, "num_iterations": 5, "algorithm": "tpe"}, "madlib-hyperopt"),
}
ALGORITHMS = {"tpe": "tpe", "rand": "random"}


@sql_function
def madlib_keras_automl(db, *values):
    """Search by hyperband or hyperopt (docs/contract/automl.md). Arguments as in SQL; returns nothing.

    `use_caching` changes nothing: rows are always kept in the trainers while they fit pg_mop.cache_mb.
    """
    train(db, dict(zip(ARGUMENTS, values)))


def train(db, arguments, earlier=None):
    """What madlib_keras_automl does with its arguments (a dict), or mop_resume with an
    :class:`~pg_mop.api.earlier.Earlier` run's."""
    a = arguments
    with errors_of_search():
        training = Automl(db, a, earlier)
    model, info, summary = db.output_table(a["model_output_table"], "_info", "_summary")
    selection, selection_summary = db.output_table(a["model_selection_table"], "_summary")
    if selection in (model, info, summary) or selection_summary in (model, info, summary):
        raise MopError(
            "model_output_table and model_selection_table must have different names",
            detail=f"Both would be made as {selection}.",
        )
    training.reserve(model)
    training.go(a)
    with training.output(None):
        write_models(training, model, info, None)
        training.write_rounds(info)
        training.write_best(selection, selection_summary, info, a)
        write_models_summary(
            training,
            summary,
            a,
            [
                ("model_selection_table", "text", a["model_selection_table"]),
                ("automl_method", "text", a["automl_method"] or "hyperband"),
                ("automl_params", "text", a["automl_params"] or training.described()),
                ("random_state", "text", a["random_state"]),
                ("object_table", "text", training.object_table),
                ("use_gpus", "boolean", bool(a["use_gpus"])),
                ("metrics_compute_frequency", "integer", training.last_frequency()),
            ],
            ended="timestamp(0)",
        )
    training.tell_of_failures(info)


class Automl(Search):
    """MADlib's two methods."""

    function = FUNCTION

    def __init__(self, db, arguments, earlier=None):
        self.frequency_given = arguments["metrics_compute_frequency"]
        super().__init__(db, {**arguments, "metric": "loss", "space": None}, earlier)
        if (
            self.frequency_given is not None
            and self.name == "madlib-hyperopt"
            and not (1 <= self.frequency_given <= self.method["num_iterations"])
        ):
            raise MopError(
                f"metrics_compute_frequency must be from 1 to num_iterations "
                f"({self.method['num_iterations']}) or NULL, not {self.frequency_given}"
            )

    def read_procedure(self, a):
        method = (a["automl_method"] or "hyperband").strip().lower()
        if method not in METHODS:
            raise MopError(f"automl_method must be 'hyperband' or 'hyperopt', not {a['automl_method']!r}")
        defaults, self.name = METHODS[method]
        given = search.read_parameters(a["automl_params"])
        if method == "hyperopt":
            given = {name.lower(): value for name, value in given.items()}
        for name in given:
            if name not in defaults:
                raise MopError(f"{name!r} is not accepted in automl_params of {method} ({', '.join(defaults)})")
        self.method = {**defaults, **given}
        for name, value in self.method.items():
            if name == "algorithm":
                if str(value).lower() not in ALGORITHMS:
                    raise MopError(f"algorithm must be 'rand' or 'tpe', not {value!r}")
            elif not isinstance(value, int) or isinstance(value, bool) or value < (0 if name == "skip_last" else 1):
                raise MopError(
                    f"{name} must be an integer {'of at least 0' if name == 'skip_last' else 'above 0'}, not {value!r}"
                )
        if method == "hyperband":
            check_hyperband(self.method["R"], self.method["eta"], self.method["skip_last"])
            self.parameters = {
                "iterations": self.method["R"],
                "reduction": self.method["eta"],
                "skip_last": self.method["skip_last"],
            }
        else:
            self.parameters = {
                "trials": self.method["num_configs"],
                "iterations": self.method["num_iterations"],
                "sampler": ALGORITHMS[str(self.method["algorithm"]).lower()],
            }

    def create_procedure(self, space, seed):
        procedure = super().create_procedure(space, seed)
        if self.name == "madlib-hyperopt" and self.segments:
            procedure.parallel = len(self._keys("training"))
        return procedure

    def read_space(self, a):
        architectures.check_list(a["model_id_list"])
        self._check_ids(a["model_id_list"])
        space = Space.of_texts(sorted(set(a["model_id_list"])), a["compile_params_grid"], a["fit_params_grid"])
        if self.name == "madlib-hyperopt" and space.branches[0].optimizer is None:
            raise MopError("hyperopt needs optimizer_params_list in compile_params_grid")
        dimensions = itertools.chain.from_iterable(branch.dimensions for branch in space.branches)
        for dimension in dimensions if self.name == "madlib-hyperopt" else ():
            if dimension.kind == "log_near_one":
                raise MopError(
                    f"'log_near_one' of {dimension.key!r} is not for hyperopt",
                    hint="Write 'linear' or 'log', or search with mop_search.",
                )
        return space

    # --- rounds and metrics -----------------------------------------------------------------------
    def described(self):
        """The parameters in force, as text."""
        return ", ".join(f"{name}={value}" for name, value in self.method.items())

    def rounds(self, key):
        """Of a trial: [(first iteration, last iteration, first of MADlib's counter), ...] by round; a person's has
        one."""
        trial = self.procedure.trials[key]
        if trial.outside:
            return [(1, trial.budget, 1)]
        if self.name == "madlib-hyperopt":
            return [(1, self.num_iterations, 1)]
        s, _ = self.procedure.place(key)
        return self.brackets[s]

    @functools.cached_property
    def brackets(self):
        """Of hyperband: {s: the rounds of its trials}, as of `rounds`."""
        rows = hyperband.schedule(self.method["R"], self.method["eta"], self.method["skip_last"], True)
        lengths = {(s, i): r for s, i, _, r in rows}
        highest = max(s for s, _ in lengths)
        # diagonal d trains for as many iterations as the first round of bracket highest - d
        begins = [0]
        for d in range(highest + 1):
            begins.append(begins[-1] + lengths.get((highest - d, 0), 0))
        found = {}
        for (s, i), r in lengths.items():
            rounds = found.setdefault(s, [])
            done = rounds[-1][1] if rounds else 0
            rounds.append((done + 1, done + r, begins[highest - s + i] + 1))
        return found

    def also_evaluated(self, key):
        """By metrics_compute_frequency where that lies within a round, else at its end alone."""
        every = self.frequency_given
        return [
            i
            for first, last, _ in self.rounds(key)
            for i in range(first, last + 1)
            if i == last or every is not None and every <= last - first + 1 and (i - first + 1) % every == 0
        ]

    def last_frequency(self):
        """What counted in the last call of fit_multiple that MADlib would have made."""
        first, last, _ = self.rounds(max(k for k, t in self.procedure.trials.items() if not t.outside))[-1]
        every = self.frequency_given
        return every if every is not None and every <= last - first + 1 else last - first + 1

    def write_rounds(self, info):
        """MADlib's more columns of the info table."""
        db = self.db
        banded = self.name == "madlib-hyperband"
        db.execute(
            f"ALTER TABLE {info} ADD COLUMN metrics_iters integer[]"
            + (", ADD COLUMN s integer, ADD COLUMN i integer" if banded else "")
        )
        evaluated = {}
        for row in self.metrics:
            if row["dataset"] == "training":
                evaluated.setdefault(row["mst_key"], []).append(row["iteration"])
        for key, trial in self.procedure.trials.items():
            rounds = self.rounds(key)
            counted = [
                begin + i - first for i in evaluated.get(key, ()) for first, last, begin in rounds if first <= i <= last
            ]
            s, i = self.procedure.place(key) if banded and not trial.outside else (None, None)
            db.execute(
                f"UPDATE {info} SET metrics_iters = $1"
                + (", s = $3, i = $4" if banded else "")
                + " WHERE mst_key = $2",
                ["integer[]", "integer"] + ["integer"] * 2 * banded,
                [counted, key] + [s, i] * banded,
            )

    def write_best(self, selection, summary, info, a):
        """The selection table: the best configuration alone, by its final loss."""
        db = self.db
        db.execute(
            f"CREATE TABLE {selection} (mst_key integer, model_id integer, compile_params varchar, fit_params varchar)"
        )
        db.identify_by_all(selection)
        db.execute(
            f"INSERT INTO {selection} SELECT mst_key, model_id, compile_params, fit_params FROM {info} "
            f"WHERE error IS NULL ORDER BY {self.dataset}_loss_final, mst_key LIMIT 1"
        )
        db.execute(f"CREATE TABLE {summary} (model_arch_table varchar, object_table varchar)")
        db.identify_by_all(summary)
        db.execute(
            f"INSERT INTO {summary} VALUES ($1, $2)", ["text", "text"], [a["model_arch_table"], self.object_table]
        )

    def tell_asked(self, proposals):
        """Of hyperband a line for each round that begins; of hyperopt how many configurations are new."""
        if self.name == "madlib-hyperopt":
            if new := sum(p.configuration is not None for p in proposals):
                self.db.info(f"{new} new configurations")
            return
        begun = collections.Counter(
            (self.procedure.place(p.trial)[0], p.budget)
            for p in proposals
            if not self.procedure.trials[p.trial].outside
        )
        for (s, budget), count in sorted(begun.items(), reverse=True):
            i, (first, last, _) = next((i, r) for i, r in enumerate(self.brackets[s]) if r[1] == budget)
            self.db.info(f"bracket s={s}, round i={i}: {count} configurations, {last - first + 1} iterations")

    def tell_best(self, trial, row, trials):
        self.db.info(f"best {self.dataset} loss so far: mst_key={trial}: {metrics.described(row)}")


def check_hyperband(most, eta, skip_last):
    """Raises MopError where these make no schedule."""
    if most is None or eta is None or eta <= 1:
        raise MopError(f"eta must be greater than 1, not {eta}")
    if most < eta:
        raise MopError(f"R ({most}) must be at least eta ({eta})")
    if skip_last is None or skip_last < 0:
        raise MopError(f"skip_last must be at least 0, not {skip_last}")
    try:
        hyperband.schedule(most, eta, skip_last, True)
    except (ValueError, SearchError) as error:
        raise MopError(str(error)) from None


@sql_function
def hyperband_schedule(db, schedule_table, r, eta, skip_last):
    """Write MADlib's schedule of hyperband (docs/contract/automl.md, section 3) to a new table."""
    check_hyperband(r, eta, skip_last)
    table = db.output_table(schedule_table)
    db.execute(f"CREATE TABLE {table} (s integer, i integer, n_i integer, r_i integer, UNIQUE (s, i))")
    db.identify_by_all(table)
    for row in hyperband.schedule(r, eta, skip_last, True):
        db.execute(f"INSERT INTO {table} VALUES ($1, $2, $3, $4)", ["integer"] * 4, list(row))
