"""One unit, inside its worker session: read the state, run the aggregate over the segment, write the state.

The coordinator sends the unit as JSON within BEGIN ... COMMIT; whatever fails here rolls back whole, so that the model
stays at its version and the unit undone.
"""

import json
import time

from mop_udf import aggregate, params
from pg_mop import object_table
from pg_mop.database import Database, MopError, extension_schema, quote_identifier


def start_trainer(plpy, GD, options):
    """Start this session's trainer, which imports Keras while the coordinator still plans."""
    aggregate.session(plpy, GD).start_trainer(json.loads(options))


def run_unit(plpy, GD, text):
    """Train or evaluate as the unit (JSON) says; the unit's row in the catalog, already there, gets the result.

    Raises SQLSTATE MOP01 where the configuration is at fault, MOP02 where the trainer was lost, MOP03 where the source
    has changed since the run began.
    """
    unit = json.loads(text)
    holder = aggregate.session(plpy, GD)
    try:
        with aggregate.failures_as_sql(plpy, holder):
            _run(plpy, holder, unit)
    except BaseException:
        if holder.unit is not None:  # an answer is still to come that nobody will wait for
            holder.stop_trainer()
        raise


def _run(plpy, holder, unit):
    schema = quote_identifier(extension_schema(plpy))
    key = [unit["run_id"], unit["mst_key"]]
    train = unit["kind"] == "train"
    began = time.monotonic()

    def query(sql, types=(), values=()):
        return plpy.execute(plpy.prepare(sql, list(types)), list(values))

    configuration = query(f"SELECT model_id, compile_params, fit_params, model_arch, version "
                          f"FROM {schema}.mop_configuration WHERE run_id = $1 AND mst_key = $2",
                          ["bigint", "integer"], key)[0]
    version = unit["version"]
    if train:
        moved = query(f"UPDATE {schema}.mop_configuration SET version = version + 1 "
                      f"WHERE run_id = $1 AND mst_key = $2 AND version = $3", ["bigint", "integer", "integer"],
                      [*key, version])
        if moved.nrows() != 1:
            plpy.error(f"model {key[1]} of run {key[0]} is not at version {version}", sqlstate=aggregate.SOURCE_CHANGED)
    found = query(unit["fingerprint_sql"])[0]["fingerprint"]
    if found != unit["fingerprint"]:
        plpy.error(f"the rows of segment {unit['segment']} in {unit['table']} have changed since the run began",
                   sqlstate=aggregate.SOURCE_CHANGED)
    def states():
        """The parts of the model's state, then those of the other replicas where there are some: (mst_key, bytes)."""
        others = [k for k, _ in unit["replicas"] or [] if k != key[1]] if version > 0 else []
        for mst_key in (key[1], *others):
            parts = 0
            for row in plpy.cursor(plpy.prepare(
                    f"SELECT data FROM {schema}.mop_state WHERE run_id = $1 AND mst_key = $2 AND version = $3 "
                    f"ORDER BY part", ["bigint", "integer", "integer"]), [key[0], mst_key, version]):
                parts += 1
                yield mst_key, row["data"]
            if version > 0 and not parts:
                plpy.error(f"the state of model {mst_key} of run {key[0]} at version {version} is missing",
                           sqlstate=aggregate.SOURCE_CHANGED)


    objects = _rights(plpy, unit["object_table"], configuration)

    holder.start_trainer(unit["options"])
    holder.begin({
        "kind": unit["kind"], "seed": unit["seed"], "same_start": unit["same_start"], "mst_key": unit["mst_key"],
        "model_id": configuration["model_id"], "iteration": unit["iteration"], "segment": unit["segment"],
        "architecture": configuration["model_arch"], "compile_params": configuration["compile_params"],
        "fit_params": configuration["fit_params"], "epochs": unit["epochs"], "dtypes": unit["dtypes"],
        "inputs": unit["inputs"], "rows": unit["rows"], "nbytes": unit["bytes"],
        "dataset": unit["dataset_key"], "keep": unit["keep"],
        # version 0 has no state, or weights alone: of a warm start or of the architecture table
        "plain_weights": version == 0, "replicas": unit["replicas"],
        "kernel": unit["kernel"], "passes_left": unit["passes_left"],
        "run_passes_left": unit["run_passes_left"], "run_seconds": unit["run_seconds"],
    }, states(), objects)
    sending = holder.unit
    report = json.loads(query(unit["rows_sql"] % {
        "epochs": sending["epochs_sent"], "where": "true" if sending["sends_rows"] else "false"})[0]["report"])
    trained = time.monotonic()

    if train:
        for number, part in enumerate(holder.save()):
            query(f"INSERT INTO {schema}.mop_state VALUES ($1, $2, $3, $4, $5)",
                  ["bigint", "integer", "integer", "integer", "bytea"], [*key, version + 1, number, part])
        # the other replicas still read the version that this one went on from
        query(f"DELETE FROM {schema}.mop_state WHERE run_id = $1 AND mst_key = $2 AND version <= $3",
              ["bigint", "integer", "integer"], [*key, version - 1 if unit["replicas"] else version])
    busy = report["seconds"] - report["wait_seconds"]
    query(f"UPDATE {schema}.mop_unit SET status = 'finished', version = $1, kernel = $2, rows = $3, loss = $4, "
          f"metric = $5, finished_at = clock_timestamp(), read_seconds = $6, train_seconds = $7, write_seconds = $8, "
          f"compilations = $16, choice = $17::json WHERE run_id = $9 AND mst_key = $10 AND iteration = $11 "
          f"AND kind = $12 AND dataset = $13 AND segment = $14 AND attempt = $15",
          ["integer", "text", "bigint", "float8", "float8", "float8", "float8", "float8", "bigint", "integer",
           "integer", "text", "text", "integer", "integer", "integer", "text"],
          [version + 1 if train else None, report["kernel"], report["rows"], report["loss"], report.get("metric"),
           max(0.0, trained - began - busy), busy, time.monotonic() - trained, *key, unit["iteration"], unit["kind"],
           unit["dataset"], unit["segment"], unit["attempt"], report.get("compilations"),
           json.dumps(report["choice"]) if "choice" in report else None])


def _rights(plpy, table, configuration):
    """{name: pickle} of the configuration's custom functions.

    What runs code or writes files is checked here once more: the unit and its configuration are only what a client
    says. The functions' table must be a superuser's, and so must the role that uses callbacks.
    """
    db = Database(plpy, extension_schema(plpy))
    try:
        with db.pinned_path():
            if params.parse_fit_params(configuration["fit_params"])["callbacks"] and not db.is_superuser():
                raise MopError("only a superuser may use callbacks")
            return object_table.read(db, table, params.parse_compile_params(configuration["compile_params"]))
    except (MopError, params.ParameterError) as error:
        problem = str(error)
    plpy.error(problem, sqlstate=aggregate.CONFIGURATION_FAILED)
