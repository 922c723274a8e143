"""mop_search: a procedure proposes configurations, extends and stops them by what comes of them."""

import contextlib
import hashlib
import secrets

from mop_udf import params
from pg_mop import search
from pg_mop.api import architectures
from pg_mop.api.earlier import open_catalog, own_run
from pg_mop.api.fit_multiple import write_models
from pg_mop.api.output import insert, write_models_summary
from pg_mop.api.training import Training, warn_of_failures
from pg_mop.backend import object_table
from pg_mop.backend.database import MopError, sql_function
from pg_mop.catalog import metric_of
from pg_mop.run.search_controller import SearchController
from pg_mop.search import grids
from pg_mop.search.space import Space

FUNCTION = "mop_search"
ARGUMENTS = (
    "source_table",
    "model_output_table",
    "model_arch_table",
    "space",
    "procedure",
    "procedure_params",
    "metric",
    "validation_table",
    "time_limit",
    "max_trials",
    "continue_from",
    "random_state",
    "use_gpus",
    "object_table",
    "name",
    "description",
)
LOOKED_AT = 50  # configurations of a space that are checked before anything is trained


@sql_function
def mop_search(db, *values):
    """Search a space of configurations (docs/search.md). Arguments as in SQL; returns nothing."""
    train(db, dict(zip(ARGUMENTS, values)))


def train(db, arguments, earlier=None):
    """What mop_search does with its arguments (a dict), or mop_resume with an
    :class:`~pg_mop.api.earlier.Earlier` run's."""
    a = arguments
    with errors_of_search():
        training = Search(db, a, earlier)
    output = db.output_table(a["model_output_table"], "_info", "_summary", "_trials")
    training.reserve(output[0])
    training.go(a)
    model, info, summary, trials = output
    with training.output(None):
        write_models(training, model, info, None)
        best = write_trials(training, trials)
        write_models_summary(
            training,
            summary,
            a,
            [
                ("space", "text", a["space"]),
                ("procedure", "text", training.procedure.name),
                ("procedure_params", "text", a["procedure_params"]),
                ("metric", "text", f"{training.dataset}_{training.metric}"),
                ("best_mst_key", "integer", best),
                ("object_table", "text", training.object_table),
                ("num_iterations", "integer", training.num_iterations),
            ],
        )
        db.identify_by_all(summary)  # mop_more writes its best
    training.tell_of_failures(info)


def write_trials(training, table):
    """What became of each trial, and its metric after each iteration that was evaluated; `iterations` and
    `metric_final` are of the state that is written. Returns the mst_key of the best of these states, or None."""
    db, procedure = training.db, training.procedure
    db.execute(
        f"CREATE TABLE {table} (mst_key integer PRIMARY KEY, model_id integer, compile_params text, "
        f"fit_params text, status text, iterations integer, metric_iters integer[], metric float8[], "
        f"metric_best float8, metric_final float8, reason text)"
    )
    values = {}
    for row in training.metrics:
        if row["dataset"] == training.dataset:
            values.setdefault(row["mst_key"], []).append((row["iteration"], training.value(row)))
    better = min if procedure.goal == "min" else max
    finals = {}
    for c in training.catalog.outcome(training.run_id, training.kept):
        key, own = c["mst_key"], values.get(c["mst_key"], [])
        final = dict(own).get(c["iteration"])
        if c["error"] is None and final is not None:
            finals[key] = final
        status = "failed" if c["error"] else "stopped" if c["reason"] else "finished"
        insert(
            db,
            table,
            {
                "mst_key": ("integer", key),
                "model_id": ("integer", c["model_id"]),
                "compile_params": ("text", c["compile_params"]),
                "fit_params": ("text", c["fit_params"]),
                "status": ("text", status),
                "iterations": ("integer", c["iteration"] or 0),
                "metric_iters": ("integer[]", [i for i, _ in own]),
                "metric": ("float8[]", [v for _, v in own]),
                "metric_best": ("float8", better((v for _, v in own), default=None)),
                "metric_final": ("float8", final),
                "reason": ("text", c["error"] or c["reason"]),
            },
        )
    return better(finals, key=finals.get, default=None)


class Search(Training):
    """Training of what a search procedure proposes."""

    searches = True

    function = FUNCTION
    asks_for_all = False
    goal = "min"  # until the metric has been read

    def __init__(self, db, arguments, earlier=None):
        """Check everything that can be checked. Raises MopError, SearchError and GridError."""
        a = arguments
        self.read_procedure(a)
        limit = a.get("time_limit")
        self.time_limit = (
            None if limit is None else float(db.value("SELECT extract(epoch FROM $1::interval)", ["text"], [limit]))
        )
        if self.time_limit is not None and not self.time_limit > 0:
            raise MopError(f"time_limit must be above 0, not {limit}", hint="For instance: time_limit => '1 hour'.")
        if a.get("max_trials") is not None and a["max_trials"] < 1:
            raise MopError(f"max_trials must be at least 1, not {a['max_trials']}")
        self.most = a.get("max_trials")
        self.arch_table_name = a["model_arch_table"]
        self._read_architectures(db, a["model_arch_table"], earlier)
        self.space = self.read_space(a)
        # before anything else is looked at: made once more when the seed is known
        procedure = self.create_procedure(self.space, 0)
        super().__init__(
            db, self.function, a["source_table"], a["validation_table"], procedure.most, None, a["use_gpus"], earlier
        )
        self.metrics_iterations = []
        self.arguments = a
        self.random_state = a["random_state"]
        if procedure.name == "population" and not (self.options["sharing"] and self.options["same_start"]):
            raise MopError(
                "population-based training goes on from what others have trained, which "
                "pg_mop.sharing = off and pg_mop.same_start = off forbid",
                hint="RESET pg_mop.sharing; RESET pg_mop.same_start;",
            )
        self.object_table = a["object_table"]
        self.functions = None if self.object_table is None else object_table.check(db, self.object_table)
        self.metric, self.dataset, self.goal = self.read_metric(a["metric"] or "loss")
        self.known = []
        if a.get("continue_from") is not None and earlier is None:  # (a search that is resumed has it in its log)
            self.known = self._known(a["continue_from"])
        if self.options["seed"] is None:
            self.options["seed"] = secrets.randbits(31)
        self.check([], self.functions)
        self._check_space()

    @property
    def proposal_seed(self):
        if self.random_state is not None:
            return self.random_state
        # with the earlier run's seed come other proposals than its own
        return (self.options["seed"] + (self.arguments.get("continue_from") or 0)) % 2**31

    def judged_by(self):
        return self.metric, self.dataset, self.goal

    def tell_of_failures(self, info):
        """Warn of the trials that failed; `info`: the table that has their errors."""
        if failed := self.failed:
            warn_of_failures(self.db, failed, len(self.configurations), "trials", info)

    @property
    def stops_within_budget(self):
        return search.find(self.name).STOPS_WITHIN_BUDGET

    def take_up(self, earlier):
        self.check([{**c, "error": None} for c in earlier.configurations], self.functions)

    # --- arguments --------------------------------------------------------------------------------
    def read_procedure(self, a):
        """`name`, `parameters` of the procedure. Raises SearchError."""
        self.name, self.parameters = a["procedure"] or "asha", search.read_parameters(a["procedure_params"])
        if search.find(self.name).name in search.MADLIB:
            raise search.SearchError(
                f"{self.name!r} is a procedure of madlib_keras_automl alone",
                "Call madlib_keras_automl, or choose one of " + ", ".join(search.PROCEDURES) + ".",
            )

    def create_procedure(self, space, seed):
        if self.most is not None and "trials" in search.find(self.name).PARAMETERS:
            self.parameters.setdefault("trials", self.most)
        return search.create(self.name, space, seed, self.goal, self.parameters)

    def _read_architectures(self, db, text, earlier=None):
        """The table's architectures by model_id; those alone that the run had that goes on: they must be the same."""
        self.arch = architectures.open_table(db, text)
        self.architectures = {
            row["model_id"]: row
            for row in db.execute(
                f"SELECT model_id::integer AS model_id, model_arch::text AS model_arch, "
                f"md5(nullif(model_weights, '')) AS weights_md5 FROM {self.arch} ORDER BY 1"
            )
        }
        if earlier is not None:
            before = earlier.tables["architectures"]
            self.architectures = {key: row for key, row in self.architectures.items() if str(key) in before}
            if self._digests() != before:
                raise MopError(
                    f'the architectures in "{text}" are not those that run {earlier.run_id} began with',
                    detail="Or their weights are others.",
                    sqlstate="55000",
                    hint=f"Begin another search with continue_from => {earlier.run_id}.",
                )
        if not self.architectures:
            raise MopError(f'model architecture table "{text}" is empty')

    def _digests(self):
        """{model_id as text: digest of its architecture and weights}."""
        return {
            str(key): hashlib.md5(f"{row['model_arch']}/{row['weights_md5']}".encode()).hexdigest()
            for key, row in self.architectures.items()
        }

    def read_space(self, a):
        """The Space that the text says: one or several dictionaries of model_id, and keys of compile and fit
        parameters, each with a list of choices or a distribution."""
        several = grids.parse_several(a["space"], "space", ("model_id", *grids.COMPILE_KEYS, *grids.FIT_KEYS))
        for number, grid in enumerate(several, 1):
            grid.setdefault("model_id", list(self.architectures))
            self._check_ids(grid["model_id"])
            if "loss" not in grid:
                raise MopError(
                    "the space has no 'loss'"
                    if len(several) == 1
                    else f"the space has no 'loss' in its dictionary {number}",
                    hint="For instance: space => $$ {'loss': ['categorical_crossentropy'], 'metrics': "
                    "[['accuracy']], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.0001, "
                    "0.1, 'log']}], 'batch_size': [16, 32]} $$",
                )
        return Space(*several)

    def _check_ids(self, ids):
        unknown = [i for i in ids if not isinstance(i, int) or isinstance(i, bool) or i not in self.architectures]
        if unknown:
            raise MopError(
                f'model_id {unknown[0]!r} is not in "{self.arch_table_name}"',
                hint=f"SELECT model_id, name FROM {self.arch};",
            )

    def _check_space(self):
        """The first configurations that the procedure would draw must be usable."""
        procedure = self.create_procedure(self.space, self.proposal_seed)
        problems = []
        proposals = [p for p in procedure.ask() if p.configuration is not None][:LOOKED_AT]
        for number, proposal in enumerate(proposals):
            c = self.new_configuration(-1 - number, proposal.configuration)
            if problem := self._problem(c):
                raise MopError(
                    f"the space has configurations that cannot be trained: {problem}",
                    detail=f"{c['compile_params']}; {c['fit_params']}",
                )
            if problem := self._misfit(c):
                problems.append(problem)
        if problems and len(problems) == len(proposals):
            raise MopError(
                f'no configuration fits the data of "{self.source.text}": {problems[0]}', hint=self.source.hint_to_fit()
            )
        for names in self._metrics_of_space() if self.metric != "loss" else ():
            if self.metric not in names:
                raise MopError(
                    f'metric "{self.metric}" is not among the metrics of all configurations of the space: '
                    f"some have {', '.join(names) or 'none'}",
                    hint=f"""Write 'metrics': [['{self.metric}']] in the space, or metric => 'loss'.""",
                )

    def _metrics_of_space(self):
        """The names of the metrics of every kind of configuration in the space. Raises MopError."""
        for branch in self.space.branches:
            choices = next((d.choices for d in branch.common if d.key == "metrics"), [None])
            for choice in choices:
                try:
                    yield params.parse_compile_params(
                        grids.compile_text({"optimizer": "SGD"}, {"loss": "mse", "metrics": choice})
                    )["metrics"]
                except params.ParameterError as error:
                    raise MopError(f"the space has configurations that cannot be trained: {error}") from None

    def _known(self, run_id):
        """What an earlier run found: [(configuration, {iteration: value})]. Where no seed is set, its own counts."""
        with open_catalog(self.db) as catalog:
            run = own_run(self.db, catalog, run_id, "function")
            if self.options["seed"] is None:  # so that its states are there to go on from
                self.options["seed"] = run["seed"]
            configurations = {c["mst_key"]: c for c in catalog.run_configurations(run_id)}
            found = {}
            for row in catalog.metrics(run_id):
                value = self.value(row)
                if row["dataset"] == self.dataset and value is not None:
                    found.setdefault(row["mst_key"], {})[row["iteration"]] = value
        return [
            ((c["model_id"], c["compile_params"], c["fit_params"]), found[key])
            for key, c in configurations.items()
            if key in found
        ]

    def value(self, row):
        """The metric that counts, of a row of Catalog.metrics."""
        return metric_of(row, self.metric)

    # --- the run ----------------------------------------------------------------------------------
    def go(self, a):
        """Open the run, search, close the run."""
        with errors_of_search():
            self.run(
                a["model_output_table"],
                a,
                {
                    "model_arch_table": self.arch_table_name,
                    "object_table": self.object_table,
                    "architectures": self._digests(),
                },
            )

    def new_configuration(self, key, configuration):
        """A configuration as `check` takes it."""
        model_id, compile_params, fit_params = configuration
        row = self.architectures.get(model_id)
        c = {
            "mst_key": key,
            "model_id": model_id,
            "compile_params": compile_params,
            "fit_params": fit_params,
            "model_arch": row and row["model_arch"],
            "weights_md5": row and row["weights_md5"],
        }
        if row is None:
            c.update(problem=f'model_id {model_id} is not in "{self.arch_table_name}"', model_arch="{}")
        elif c["weights_md5"] is not None:
            c["weights_sql"] = f"SELECT model_weights FROM {self.arch} WHERE model_id = {int(model_id)}"
        return c

    def add(self, c, iterations):
        problem = super().add(c, iterations)
        if problem is None and self.metric not in ("loss", *c["compile"]["metrics"]):  # as a person's may
            problem = f"it has no metric {self.metric!r}, by which this search judges"
            self.misfits[c["mst_key"]] = c["error"] = problem
        return problem

    def controller(self):
        self.procedure = self.create_procedure(self.space, self.proposal_seed)
        events = self.catalog.search_log(self.run_id)
        if not events and self.known:
            events = [["known", self.known]]
            self.catalog.log_search(self.run_id, 1, events)
        return SearchController(self, self.procedure, events, self.time_limit, self.most)

    def _ask(self, c):
        """Nothing is asked for but by the procedure."""

    def differs(self, earlier):
        if earlier.tables["architectures"] != self._digests():
            return "its architectures are others"
        same = all(
            self.options[name] == earlier.settings.get(name)
            for name in ("kernel", "same_start", "sharing", "keras_backend")
        )
        return None if same else "its settings are others"

    def also_evaluated(self, key):
        """Iterations of a trial whose metrics are wanted although the procedure does not ask for them."""
        return ()

    def tell_best(self, trial, row, trials):
        """Tell of the best of so many trials by now; `row`: its metrics, as of Catalog.metrics."""
        self.db.info(
            f"best of {trials} trials so far: mst_key={trial} after {row['iteration']} iterations, "
            f"{self.dataset} {self.metric}={self.value(row):.4g}"
        )

    def tell_asked(self, proposals):
        """Tell of what the procedure asks for now."""

    def all_failed(self):
        if not self.configurations:
            return "nothing is left to try: all that the space has is known from the run that this continues"
        return f"all {len(self.configurations)} trials failed"


@contextlib.contextmanager
def errors_of_search():
    """What search procedures and spaces refuse, as errors of SQL."""
    try:
        yield
    except search.SearchError as error:
        raise MopError(str(error), hint=error.hint) from None
    except grids.GridError as error:
        raise MopError(str(error)) from None
