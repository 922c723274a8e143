"""mop_more: a configuration that has been trained is trained on."""

from pg_mop import object_table
from pg_mop.api.earlier import Earlier, open_journal, own_run
from pg_mop.api.fit_multiple import info_of, weights_of
from pg_mop.api.output import tell_of_large
from pg_mop.api.training import Training
from pg_mop.database import MopError, quote_identifier, sql_function

FUNCTION = "mop_more"
ARGUMENTS = ("run_id", "mst_key", "iterations")


@sql_function
def mop_more(db, *values):
    """Train a configuration of a run on, and put the result in its rows of the run's output tables.

    Raises MopError where the run has no such configuration, or its output tables are gone.
    """
    train(db, dict(zip(ARGUMENTS, values)))


def train(db, arguments, earlier=None):
    """What mop_more does with its arguments (a dict), or mop_resume with an :class:`Earlier` run's."""
    a = arguments
    if a["iterations"] is None or a["iterations"] < 1:
        raise MopError(f"iterations must be at least 1, not {a['iterations']}")
    training = More(db, a, earlier)
    model, info = training.tables
    training.reserve(model)
    training.run(training.before.output, a, {})
    with training.output(None):
        key = a["mst_key"]
        c = training.journal.outcome(training.run_id, training.kept)[0]
        weights = weights_of(training, c)
        db.execute(f"UPDATE {model} SET model_weights = $1, __dist_key__ = $2 WHERE mst_key = $3",
                   ["bytea", "integer", "integer"], [weights, c["segment"], key])
        columns = info_of(training, c, len(weights))
        present = db.columns(training.info)
        columns = {name: value for name, value in columns.items() if name in present}
        db.execute(f"UPDATE {info} SET " + ", ".join(f"{quote_identifier(n)} = ${i + 1}" for i, n in enumerate(columns))
                   + f" WHERE mst_key = ${len(columns) + 1}",
                   [kind for kind, _ in columns.values()] + ["integer"], [v for _, v in columns.values()] + [key])
        tell_of_large(db, model, [len(weights)])


class More(Training):
    """The path of one configuration, longer than it was."""

    def __init__(self, db, arguments, earlier=None):
        run_id, key = arguments["run_id"], arguments["mst_key"]
        with open_journal(db) as journal:
            run = own_run(db, journal, run_id)
            if run["status"] == "running" or not journal.output_is_written(run_id):
                raise MopError(f"run {run_id} is {run['status']}, and its output tables are not written",
                               hint=None if run["status"] == "running" else
                               f"SELECT {db.extension}.mop_resume({run_id});", sqlstate="55000")
            self.before = before = Earlier(journal, run)
            evaluated = {m["iteration"] for m in journal.metrics(run_id) if m["mst_key"] == key}
        if before.averaging or before.function == "madlib_keras_fit":
            raise MopError(f"run {run_id} is of madlib_keras_fit", hint="Call it again with warm_start => TRUE.")
        c = next((c for c in before.configurations if c["mst_key"] == key), None)
        if c is None or c["error"] is not None:
            raise MopError(f"run {run_id} has no mst_key {key}" if c is None else
                           f"mst_key {key} of run {run_id} failed: {c['error']}",
                           hint=f"SELECT mst_key, status, reason FROM {db.extension}.mop_trials WHERE run_id = "
                                f"{run_id};")
        before.output = run["model_output_table"]
        self.info = self._table(db, db.suffixed(before.output, "_info"), key)
        self.tables = [str(self._table(db, before.output, key)), str(self.info)]
        # it may have been trained on since
        done = max(before.iterations[key], db.value(
            f"SELECT iteration FROM {self.info} WHERE mst_key = $1", ["integer"], [key]) or 0
            if "iteration" in db.columns(self.info) else 0)
        super().__init__(db, FUNCTION, run["source_table"], run["validation_table"], done + arguments["iterations"],
                         None, before.arguments.get("use_gpus"), earlier)
        self._adopt(before)
        self.preferred = run_id
        self.options["seed"] = before.seed
        every = before.arguments.get("metrics_compute_frequency") or arguments["iterations"]
        self.metrics_iterations = sorted(evaluated | {
            i for i in range(done + 1, self.num_iterations + 1) if i % every == 0} | {self.num_iterations})
        self.object_table = before.tables.get("object_table")
        functions = None if self.object_table is None else object_table.check(db, self.object_table)
        self.check([{**c, "error": None, "reason": None}], functions)
        for c in self.configurations:  # what stopped it shall not do so again
            c["fit"]["stop"] = None

    @staticmethod
    def _table(db, text, key):
        table = db.input_table(text, "output table of the run")
        if not db.value(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE mst_key = $1)", ["integer"], [key]):
            raise MopError(f"{table} has no row of mst_key {key}")
        if not db.value("SELECT has_table_privilege($1::oid, 'UPDATE')", ["oid"], [table.oid]):
            raise MopError(f"permission denied to update {table}", sqlstate="42501")
        return table
