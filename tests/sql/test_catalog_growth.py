"""The catalog's statements: their work grows with the run, not with its square, whatever PostgreSQL's planner knows of it.

Statements of one unit or one trial do not grow with the run at all, once the planner has been told (Executor._tell_planner).
"""

import json

import pytest

from pg_mop.backend.errors import MopError
from pg_mop.plan.cost_history import Net
from support.client import Client, connect
from support.grown import FINGERPRINTS, ROLE, Measured, grown, make_role, work

ITERATIONS = 10
SMALL, LARGE = 30, 90  # configurations
NEW = [{"mst_key": 1000, "model_id": 1, "compile_params": "c", "model_arch": "a"}]
FRESH = {"parent": None, "iteration": 1, "identity": "x", "mst_key": 1000, "compile_params": "c", "version": 0}


class Statements:
    """Calls of a catalog for a run of so many configurations, that has taken over stages of an earlier run."""

    def __init__(self, db, state, configurations):
        self.catalog, self.n = Measured(db), configurations
        self.earlier = grown(db, self.catalog, configurations, ITERATIONS)
        if state == "told of an earlier run":
            db.run("ANALYZE")
        self.run = grown(db, self.catalog, configurations, ITERATIONS, self.earlier)
        if state == "told":
            db.run("ANALYZE")
        self.stages = list(range(1, configurations * ITERATIONS + 1))
        # as in large tables: one row is found by an index much sooner than by reading all
        self.catalog.execute("SET random_page_cost = 0.05; SET cpu_tuple_cost = 0.1")

    def measured(self, statements):
        """{name: rows} of the work for each of the statements."""
        found = {}
        for name, call in statements:
            self.catalog.plans()
            call()
            found[name], parsed = work(self.catalog.plans())
            assert not parsed, (name, parsed)
        return found

    def adopt(self, stages):
        taken = [{"stage": s, "run": self.earlier, "of": s, "state": False, "scored": True} for s in stages]
        assert self.catalog.call("mop_adopt", self.run, 1, json.dumps(taken))

    def of_the_run(self):
        c, run, stages = self.catalog, self.run, self.stages
        names = [f"i{stage}" for stage in stages]
        nets = {Net(f"d{n}", "a", "o", "l", 9, "s"): dict.fromkeys(stages[n :: self.n], 1) for n in range(self.n)}
        return [
            ("configurations", lambda: c.run_configurations(run)),
            ("stages", lambda: c.run_stages(run)),
            ("units", lambda: c.run_units(run)),
            ("finished units", lambda: c.finished_units(run)),
            ("metrics", lambda: c.metrics(run)),
            ("metrics of an iteration", lambda: c.metrics(run, 1)),
            ("metrics of stages", lambda: c.metrics(run, stages=stages)),
            ("outcome", lambda: c.outcome(run)),
            ("outcome of the best", lambda: c.outcome(run, dict.fromkeys(range(1, self.n + 1), 2))),
            ("search log", lambda: c.search_log(run)),
            ("states", lambda: c.models(run)),
            ("known stages", lambda: c.known_stages(run, names, FINGERPRINTS, [self.earlier])),
            ("stages beside", lambda: c.stages_beside([self.earlier], names)),
            ("adopt", lambda: self.adopt(stages)),
            ("costs", lambda: c.note_costs(run, nets)),
            ("release", lambda: c.release_states(run, stages)),
            ("keep", lambda: c.keep_checkpoints(self.earlier)),
            ("close", lambda: c.close_run(run, "finished")),
            ("known checkpoints", lambda: c.known_stages(run, names, FINGERPRINTS)),
            ("evict", lambda: c.call("mop_evict", 1 << 60)),
            ("tell the planner", lambda: c.note_growth(run)),  # as the executor has done when a large run ends
            ("drop", lambda: c.drop_run(run)),
            ("reopen", lambda: c.reopen_run(self.earlier)),
        ]

    def of_a_step(self):
        c, run, stage = self.catalog, self.run, len(self.stages) + 1
        unit = {"kind": "train", "dataset": "training", "stage": stage, "iteration": 1, "segment": 0, "attempt": 1}
        result = {"stage": stage, "segment": 0, "attempt": 1, "version": 1, "state_table": 1, "bytes": 1, "release": []}
        asked = (
            NEW,
            [{**FRESH, "stage": stage, "evaluated": True}],
            [{"mst_key": 1000, "iteration": 1, "stage": stage}],
        )
        return [
            ("run", lambda: c.run(run)),
            ("metrics", lambda: c.metrics(run, stages=[1])),
            ("bytes", lambda: c.state_bytes(run, 1)),
            ("known", lambda: c.known_stages(run, ["i1"], FINGERPRINTS)),
            ("ask", lambda: c.call("mop_ask", run, 1, *map(json.dumps, asked))),
            ("adopt", lambda: self.adopt([1])),
            ("begin", lambda: c.begin_units(run, [{**unit, "queued_at": 0}], None)),
            ("take", lambda: c.execute("SELECT madlib.mop_take_states(%s, 1, %s, '{0}', true)", (run, [stage]))),
            ("finish", lambda: c.call("mop_finish_units", run, "train", "training", json.dumps([result]))),
            ("sums", lambda: c.call("mop_put_sums", run, [1], "training", 0, [1], [1.0])),
            ("is finished", lambda: c.unit_is_finished({**unit, "run_id": run})),
            ("withdraw", lambda: c.withdraw(run, 1, ITERATIONS - 1, "stopped")),
            ("fail", lambda: c.fail_configurations(run, [2], "failed", "configuration")),
            ("requests", lambda: c.control_requests(run)),
            ("counts", lambda: c.note_counts(run, 1, 0, 0, 0, 1, 1)),
        ]


@pytest.fixture(scope="module")
def at(server, template, db):
    """A function: the Statements in a new database, for what its planner knows and a number of configurations."""
    make_role(db)
    opened, maker = [], connect(server, "postgres")

    def made(state, configurations):
        name = f"grown_{len(opened)}"
        maker.cursor().execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        client = Client(server, name)
        opened.append((client, found := Statements(client, state, configurations)))
        return found

    yield made
    for client, statements in opened:
        statements.catalog.close()
        client.close()
        maker.cursor().execute(f"DROP DATABASE {client.database} WITH (FORCE)")
    maker.close()
    db.run(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


@pytest.mark.parametrize("state", ["told nothing", "told of an earlier run", "told"])
def test_the_work_for_a_run_grows_with_the_run(at, state):
    small, large = (s.measured(s.of_the_run()) for s in (at(state, n) for n in (SMALL, LARGE)))
    most = 1.3 * LARGE / SMALL
    assert {name: (small[name], rows) for name, rows in large.items() if rows > most * small[name] + 100} == {}


def test_the_work_for_a_step_does_not_grow_with_the_run(at):
    small, large = (s.measured(s.of_a_step()) for s in (at("told", n) for n in (SMALL, LARGE)))
    assert {name: (small[name], rows) for name, rows in large.items() if rows > 1.1 * small[name] + 20} == {}


def test_no_statement_of_the_catalog_has_a_time_limit(at):
    """Its time grows with the run. Only the wait for another session's lock ends."""
    catalog = at("told nothing", 3).catalog
    limits = ("statement_timeout", "transaction_timeout", "lock_timeout")
    found = {
        row["name"]: row["setting"]
        for row in catalog.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(limits),))
    }
    assert found.pop("lock_timeout") == "10000" and set(found.values()) == {"0"}


def test_a_server_that_is_still_at_work_is_not_taken_for_lost(at):
    """Only one that does not answer another session either; here, one that nobody may ask."""
    catalog = at("told nothing", 3).catalog
    catalog.SECONDS = 0.2
    assert catalog.value("SELECT 1 FROM pg_sleep(1.5)") == 1
    catalog.target.parameters["user"] = "nobody"
    with pytest.raises(MopError, match="has not answered"):
        catalog.value("SELECT 1 FROM pg_sleep(1.5)")
    catalog.target.parameters["user"] = ROLE
