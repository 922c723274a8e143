"""A large run in the catalog's tables, and what PostgreSQL does for the catalog's statements: rows, not seconds."""

import collections
import json
import re

from pg_mop.catalog.remote import RemoteCatalog
from pg_mop.connections.targets import Target

SEGMENTS = 2
RUN = {
    "function": "mop_search",
    "source_table": "s",
    "model_output_table": "o",
    "seed": 7,
    "scheduler": "randomized",
    "metrics_iterations": [1],
    "segments": SEGMENTS,
    "sessions": 1,
    "parameters": {"arguments": {}, "settings": {"reuse": True, "priority": 0}},
}
FINGERPRINTS = {(dataset, s): f"{dataset}{s}" for dataset in ("training", "validation") for s in range(SEGMENTS)}
ROLE = "grower"
EXPLAINED = {
    "log_min_duration": "0",
    "log_analyze": "on",
    "log_timing": "off",
    "log_verbose": "on",
    "log_nested_statements": "on",
    "log_format": "json",
    "log_level": "notice",
}
REMOVED = tuple(f"Rows Removed by {what}" for what in ("Filter", "Join Filter", "Index Recheck"))
EACH = "generate_series(1, %(i)s) AS i CROSS JOIN generate_series(1, %(n)s) AS k"
VISITS = f"{EACH} CROSS JOIN generate_series(0, %(s)s - 1) AS s"
STAGE = "((i - 1) * %(n)s + k)"
# of the configurations of a run with a `source`, a third has trained itself, one was taken over from that run, and one from
# a run of another role
ORIGIN, TAKEN = (f"(%(source)s::bigint IS NOT NULL AND k %% 3 = {n})" for n in (1, 2))
ROWS = (
    "mop_configuration (run_id, mst_key, model_id, compile_params, fit_params, model_arch) "
    "SELECT %(run)s, k, 1, 'c', 'f' || k, 'a' FROM generate_series(1, %(n)s) AS k",
    "mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params, evaluated, source_run, source_stage) "
    f"SELECT %(run)s, {STAGE}, CASE WHEN i > 1 THEN {STAGE} - %(n)s END, i, 'i' || {STAGE}, k, 'c', true, "
    f"CASE WHEN {ORIGIN} THEN %(source)s WHEN {TAKEN} THEN %(run)s END, CASE WHEN {ORIGIN} OR {TAKEN} THEN {STAGE} END "
    f"FROM {EACH}",
    f"mop_request SELECT %(run)s, k, i, {STAGE} FROM {EACH}",
    "mop_stage_state (run_id, stage, version, state_table, bytes, made_on) "
    f"SELECT %(run)s, {STAGE}, i * %(s)s, 1, 10, 0 FROM {EACH}",
    "mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, version, rows, train_seconds, choice) "
    f"SELECT %(run)s, {STAGE}, i, s, 'train', 'training', 1, 'finished', (i - 1) * %(s)s + s + 1, 9, 0.1, "
    """'{"batch_seconds": {"plain": 0.1}, "device": "cpu", "version": "1"}' """
    f"FROM {VISITS} WHERE NOT {ORIGIN} AND NOT {TAKEN}",
    "mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status) "
    f"SELECT %(run)s, {STAGE}, i, s, 'evaluate', d, 1, 'finished' FROM {VISITS} "
    f"CROSS JOIN unnest(ARRAY['training', 'validation']) AS d WHERE NOT {ORIGIN} AND NOT {TAKEN}",
    "mop_taken_unit (run_id, stage, segment, version) "
    f"SELECT %(run)s, {STAGE}, s, (i - 1) * %(s)s + s + 1 FROM {VISITS} WHERE {TAKEN}",
    "mop_metric (run_id, stage, dataset, loss, metric, metrics) "
    f"""SELECT %(run)s, {STAGE}, d, 0.5, 0.5, '{{"accuracy": 0.5}}' """
    f"FROM {EACH} CROSS JOIN unnest(ARRAY['training', 'validation']) AS d",
    f"""mop_search_log (run_id, number, event) SELECT %(run)s, {STAGE}, '["told", 1, 2, 0.5]' FROM {EACH}""",
)


def make_role(db):
    """The role whose catalog is measured, for all databases of the server."""
    names = ", ".join(f"auto_explain.{name}" for name in EXPLAINED)
    db.run(
        f"CREATE ROLE {ROLE} LOGIN; GRANT mop_user TO {ROLE}; ALTER ROLE {ROLE} SET session_preload_libraries = auto_explain"
    )
    if db.connection.server_version >= 150000:
        db.run(f"GRANT SET ON PARAMETER {names} TO {ROLE}")


class Measured(RemoteCatalog):
    """The catalog of ROLE; `plans()`: of all statements since its last call, also of those within functions (auto_explain)."""

    def __init__(self, db):
        parameters = {"host": db.server.host, "port": db.server.port, "dbname": db.database, "user": ROLE}
        super().__init__(Target("w1", parameters, ROLE), "madlib", lambda: None)
        self.fencing_token = 1
        self.notices = self.connection.notices = collections.deque()  # (psycopg2 would cut a list)
        self._run("SET client_min_messages = notice")
        for name, value in EXPLAINED.items():
            self._run(f"SET auto_explain.{name} = {value}")

    def plans(self):
        found = [json.JSONDecoder().raw_decode(text[text.index("{") :])[0] for text in self.notices if "plan:" in text]
        self.notices.clear()
        return [plan["Plan"] for plan in found]


def rows_of(node):
    """The rows that a node of a plan has looked at, without those of the nodes below."""
    rows = node.get("Actual Rows", 0) + sum(node.get(name, 0) for name in REMOVED)
    return node.get("Actual Loops", 0) * (1 + rows)


def nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def work(plans):
    """The rows that all nodes have looked at, and the expressions that read one JSON text again for each of many rows."""
    every = [node for plan in plans for node in nodes(plan)]
    parsed = [
        text[:200]
        for node in every
        if rows_of(node) > 20
        for name in ("Output", "Filter", "Join Filter", "Hash Cond", "Index Cond")
        for text in [str(node.get(name, ""))]
        if re.search(r"'::jsonb? ->", text)
    ]
    return sum(map(rows_of, every)), parsed


def grown(db, catalog, configurations, iterations, source=None):
    """The number of a run with so many configurations and iterations. `source`: an equal run, from which it has taken over a
    third of its stages; another third, from a run of another role."""
    run = {**RUN, "num_iterations": iterations, "configurations": configurations, "coordinator": catalog.coordinator}
    segments = [
        {"dataset": dataset, "segment": s, "rows": 9, "bytes": 9, "fingerprint": text, "server": None, "copies": []}
        for (dataset, s), text in FINGERPRINTS.items()
    ]
    number = catalog.call("mop_open_run", json.dumps(run), json.dumps(segments))
    for rows in ROWS:
        values = {"run": number, "n": configurations, "i": iterations, "s": SEGMENTS, "source": source}
        db.run(f"INSERT INTO madlib.{rows}", values)
    return number
