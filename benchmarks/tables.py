"""A connection, and a workload's tables in the database."""

import json
import tempfile
import time

import psycopg2

BRACES = str.maketrans("[]", "{}", " ")
# of a session with compared calls: no reuse, the same seed, one thread for each trainer
SETTINGS = "SET client_min_messages = warning; SET pg_mop.threads = 1; SET pg_mop.seed = 1; SET pg_mop.reuse = off"


def connect(dsn):
    """(connection, cursor) in autocommit mode."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    return connection, connection.cursor()


def load_rows(cursor, workload, table="raw", validation=False):
    """The raw table."""
    x, y = workload.data(validation)
    cursor.execute(
        f"DROP TABLE IF EXISTS {table}; "
        f"CREATE TABLE {table} (id integer, x real{'[]' * len(workload.shape)}, y integer)"
    )
    with tempfile.TemporaryFile("w+") as text:
        for number, (row, label) in enumerate(zip(x, y.tolist())):
            text.write(f"{number}\t{json.dumps(row.tolist()).translate(BRACES)}\t{label}\n")
        text.seek(0)
        cursor.copy_expert(f"COPY {table} FROM STDIN", text)


def pack(cursor, workload, segments):
    """The packed training and validation tables."""
    cursor.execute("DROP TABLE IF EXISTS packed, packed_summary, packed_validation, packed_validation_summary")
    cursor.execute("SELECT set_config('pg_mop.segments', %s, FALSE)", [str(segments)])
    cursor.execute(
        "SELECT madlib.training_preprocessor_dl('raw', 'packed', 'y', 'x', NULL, 1.0, %s)", [[workload.classes]]
    )
    if workload.validation:
        cursor.execute(
            "SELECT madlib.validation_preprocessor_dl('raw_validation', 'packed_validation', 'y', 'x', 'packed')"
        )


def configure(cursor, workload, weights=True):
    """The architecture table and the model selection table. Without `weights`, training starts from the seed."""
    cursor.execute("DROP TABLE IF EXISTS arch, mst, mst_summary, models, models_info, models_summary")
    for number in range(len(workload.nets)):
        text, arrays = workload.architecture(number)
        cursor.execute(
            "SELECT madlib.load_keras_model('arch', %s, %s)",
            [text, b"".join(w.tobytes() for w in arrays) if weights else None],
        )
    cursor.execute(
        "CREATE TABLE mst (mst_key integer, model_id integer, compile_params text, fit_params text); "
        "CREATE TABLE mst_summary AS SELECT 'arch'::text AS model_arch_table, NULL::text AS object_table"
    )
    for key, c in enumerate(workload.configurations):
        cursor.execute(
            "INSERT INTO mst VALUES (%s, %s, %s, %s)",
            [key, c.architecture + 1, c.compile_params, f"batch_size={c.batch_size}"],
        )


def train(cursor, iterations, validation=None, use_gpus=False):
    """Train on the tables of `pack` and `configure`; with a validation table, evaluate at the end. Returns the run_id."""
    cursor.execute(
        "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'mst', %s, %s, %s, %s)",
        [iterations, use_gpus, validation, iterations if validation else None],
    )
    return last_run(cursor)


def timed(cursor, workload, segments):
    """Seconds of packing and of training."""
    began = time.monotonic()
    pack(cursor, workload, segments)
    packed = time.monotonic()
    configure(cursor, workload)
    configured = time.monotonic()
    train(cursor, workload.iterations)
    return packed - began, time.monotonic() - configured


def search(cursor, study, seed):
    """Search the space of a Study over the tables of `pack` and `configure`. Returns the run_id."""
    cursor.execute(
        "DROP TABLE IF EXISTS models_trials; SELECT madlib.mop_search('packed', 'models', 'arch', %s, %s, "
        "%s, 'loss', 'packed_validation', random_state => %s)",
        [
            study.space,
            study.procedure,
            f"trials={len(study.configurations)}, iterations={study.iterations}, reduction={study.reduction}, "
            f"least={study.levels[0]}, sampler=random",
            seed,
        ],
    )
    return last_run(cursor)


def last_run(cursor):
    cursor.execute("SELECT max(run_id) FROM madlib.mop_runs")
    return cursor.fetchone()[0]
