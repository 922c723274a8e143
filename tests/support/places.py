"""One small job that is done in places of all kinds: odd names, settings, servers."""

import json

from support.workload import ADAM, alike, dense

DEFAULTS = {
    "pg_mop.kernel": "plain",
    "pg_mop.threads": "1",
    "pg_mop.seed": "7",
    "pg_mop.segments": "2",
    "pg_mop.scheduler": "round-robin",
}  # no clock decides the visit order


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def _format(text):
    """For psycopg2, to which a percent sign is a placeholder's where a statement has values."""
    return text.replace("%", "%%")


def prepare(db, schema, grantee=None, classes=("a", "b", "c"), extension="madlib"):
    """In `schema`: the rows, the architecture and the selection of `job`, made by a superuser."""
    s, m = quoted(schema), quoted(extension)
    db.run(f"CREATE SCHEMA IF NOT EXISTS {s}")
    db.run(f"CREATE TABLE {s}.flowers (id integer, x real[], y text)")
    db.run(
        f"INSERT INTO {_format(s)}.flowers SELECT i, ARRAY[i %% 3, (i * 7) %% 5, (i * 11) %% 7, 0.1], "
        f"(%s::text[])[1 + i %% 3] FROM generate_series(1, 60) AS i",
        [list(classes)],
    )
    db.run(f"SELECT {_format(m)}.load_keras_model(%s, %s::json)", [f"{s}.arch", dense()])
    db.run(f"CREATE TABLE {s}.mst (mst_key integer, model_id integer, compile_params varchar, fit_params varchar)")
    db.run(
        f"CREATE TABLE {_format(s)}.mst_summary AS SELECT %s::varchar AS model_arch_table, "
        f"NULL::varchar AS object_table",
        [f"{s}.arch"],
    )
    db.run(
        f"INSERT INTO {_format(s)}.mst VALUES (1, 1, %s, 'batch_size=8,epochs=1'), "
        f"(2, 1, %s, 'batch_size=16,epochs=1')",
        [ADAM.format(0.05), ADAM.format(0.01)],
    )
    if grantee:
        db.run(
            f"GRANT USAGE, CREATE ON SCHEMA {s} TO {quoted(grantee)}; "
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {s} TO {quoted(grantee)}"
        )


OUTPUT = (
    "packed",
    "packed_summary",
    "models",
    "models_info",
    "models_summary",
    "evaluated",
    "predicted",
    "fitted",
    "fitted_summary",
)


def job(client, schema, extension="madlib", defaults=DEFAULTS):
    """Pack, train by both functions, evaluate and predict, as a user does; the tables lie in `schema`."""
    s, m = quoted(schema), _format(quoted(extension))
    for name, value in defaults.items():
        client.run("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
    client.run(f"DROP TABLE IF EXISTS {', '.join(f'{s}.{t}' for t in OUTPUT)}")
    client.run(f"SELECT {m}.training_preprocessor_dl(%s, %s, 'y', 'x', 10)", [f"{s}.flowers", f"{s}.packed"])
    client.run(
        f"SELECT {m}.madlib_keras_fit_multiple_model(%s, %s, %s, 2, FALSE, %s)",
        [f"{s}.packed", f"{s}.models", f"{s}.mst", f"{s}.packed"],
    )
    client.run(
        f"SELECT {m}.madlib_keras_evaluate(%s, %s, %s, FALSE, 2)", [f"{s}.models", f"{s}.packed", f"{s}.evaluated"]
    )
    client.run(
        f"SELECT {m}.madlib_keras_predict(%s, %s, 'id', 'x', %s, 'prob', FALSE, 1)",
        [f"{s}.models", f"{s}.flowers", f"{s}.predicted"],
    )
    client.run(
        f"SELECT {m}.madlib_keras_fit(%s, %s, %s, 1, %s, 'batch_size=8', 1)",
        [f"{s}.packed", f"{s}.fitted", f"{s}.arch", ADAM.format(0.05)],
    )


def outcome(db, schema):
    """What `job` made, as `db` (a session of default settings) reads it: equal where the work was the same.

    Evaluations and predictions are compared within rounding (as `alike` does). Both take all segments at once if the role's
    trainers are idle, and else all rows in one session: then other rows are in a batch, and its sum rounds otherwise.
    """
    s = quoted(schema)
    rows = {
        "packed": db.run(
            f"SELECT __dist_key__, buffer_id, md5(x) AS x, md5(y) AS y, x_shape FROM {s}.packed ORDER BY 1, 2"
        ),
        "classes": db.run(f"SELECT y_class_values FROM {s}.packed_summary"),
        "models": db.run(
            f"SELECT mst_key, md5(model_weights) AS weights, octet_length(model_weights) AS bytes, "
            f"model_arch::text AS arch FROM {s}.models ORDER BY 1"
        ),
        "losses": db.run(
            f"SELECT mst_key, training_loss, validation_loss, validation_metrics_final, error "
            f"FROM {s}.models_info ORDER BY 1"
        ),
        "evaluated": db.run(f"SELECT * FROM {s}.evaluated"),
        "predicted": db.run(f"SELECT * FROM {s}.predicted ORDER BY id, class_value"),
        "fitted": db.run(f"SELECT md5(model_weights) AS weights FROM {s}.fitted"),
    }
    rows = json.loads(json.dumps(rows, default=str))
    return {**rows, **{name: alike(rows[name], 1e-6) for name in ("evaluated", "predicted")}}
