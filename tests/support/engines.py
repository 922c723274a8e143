"""What every engine keeps to: the same calls, and the same results, wherever the segments are."""

import base64
import os
import signal
import time

import numpy as np
import pytest

from support import greenplum
from support.citus_nodes import Nodes
from support.client import Calling, Client, add_server
from support.cluster import Cluster, eventually
from support.trainers import of_backend, trainers
from support.tries import tries
from support.workload import (
    ADAM,
    alike,
    assert_invariants,
    buffers,
    dense,
    fit,
    last_run,
    load,
    make_data,
    pickled,
    replayed,
    runs_made,
    selection,
)

SEED = 11
EXTENSION = "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE"


class OneServer:
    """All segments on the coordinator's own server.

    `db`: a session of the coordinator's; `workers`: {name of another server: a session there}, where the extension is
    in `schema`; `distribute`: SQL for what is done with a table of raw rows; `keys`: the segments' `__dist_key__`;
    `backend`: Keras' framework; `use_gpus`: whether calls train on a GPU."""

    servers, schema, distribute, keys = None, "mop", "SELECT", [0, 1, 2]
    lacks = ()  # what does not work there yet
    backend, use_gpus = "tensorflow", False
    tolerance, averaged = 1e-5, 1e-6  # relative: of predictions in other batches, and of averaged weights

    def __init__(self, server):
        self.maker = Client(server, "postgres")
        self.maker.run("DROP DATABASE IF EXISTS engine WITH (FORCE)")
        self.maker.run("CREATE DATABASE engine")
        self.maker.run(f"ALTER DATABASE engine SET pg_mop.keras_backend = '{self.backend}'")
        self.db, self.workers = Client(server, "engine"), {}
        self.db.run(EXTENSION)

    def fit(self, *arguments, db=None, **named):
        """Train as workload.fit does, where this engine trains: the run_id."""
        return fit(db or self.db, *arguments, **named, use_gpus=self.use_gpus)

    def same(self, ours, other):
        """True if two results of the same training (bytes of float32) agree: on processors, in every bit."""
        return ours == other

    def again(self, numbers):
        """Losses and metrics to compare with, from the same training: equal ones, on processors."""
        return numbers

    def as_keras(self, ours, theirs):
        """True if weights (bytes) are those that plain Keras has trained: in every bit, in this framework."""
        return ours == theirs

    def close_to(self, value):
        """A loss or metric to compare with, from the same weights and rows."""
        return pytest.approx(value, rel=1e-6, abs=1e-6)

    def trainers(self, place, pid):
        """Process ids of the trainers of a session with a server (a client there, the session's process id)."""
        return [trainer for trainer in trainers() if of_backend(trainer) == pid]

    def needs(self, what):
        """Skip a test, by name, where something does not work yet."""
        if what in self.lacks:
            pytest.skip(f"NOT RUN on {type(self).__name__}: {what}")

    def segments_elsewhere(self):
        """How many segments of flowers_packed are on which other server."""
        return self.db.run(
            "SELECT srvname AS server, count(*) FROM pg_foreign_table t JOIN pg_inherits i ON i.inhrelid = t.ftrelid "
            "JOIN pg_foreign_server s ON s.oid = t.ftserver WHERE i.inhparent = 'flowers_packed'::regclass GROUP BY 1"
        )

    def raw_rows(self):
        """The raw rows as a table `rawp`, a partition on each server: sessions on these servers."""
        workers = self.workers or {None: self.db}
        places = [*((worker, name) for name, worker in workers.items()), (self.db, None)]
        self.db.run("DROP TABLE IF EXISTS rawp; CREATE TABLE rawp (LIKE flowers) PARTITION BY HASH (id)")
        for number, (client, name) in enumerate(places):
            bounds = f"FOR VALUES WITH (MODULUS {len(places)}, REMAINDER {number})"
            if client is self.db:
                self.db.run(f"CREATE TABLE rawp_{number} PARTITION OF rawp {bounds}")
            else:
                client.run("DROP TABLE IF EXISTS public.raw; CREATE TABLE public.raw (id integer, x real[], y text)")
                self.db.run(
                    f"CREATE FOREIGN TABLE rawp_{number} PARTITION OF rawp {bounds} SERVER {name} "
                    "OPTIONS (schema_name 'public', table_name 'raw')"
                )
        self.db.run("INSERT INTO rawp SELECT * FROM flowers")
        return [client for client, _ in places]

    def close(self):
        self.db.close()
        self.maker.run("DROP DATABASE engine WITH (FORCE)")
        self.maker.close()


class SeveralServers(OneServer):
    """Segments on two other servers and on the coordinator's own, by postgres_fdw."""

    servers = "w1, local, w2"

    def __init__(self, server):
        super().__init__(server)
        self.clusters = {name: Cluster(max_connections=40) for name in ("w1", "w2")}
        self.db.run("CREATE EXTENSION postgres_fdw")
        self.workers = {name: add_server(self.db, name, cluster) for name, cluster in self.clusters.items()}

    def close(self):
        for worker in self.workers.values():
            worker.close()
        super().close()
        for cluster in self.clusters.values():
            cluster.stop()


class CitusNodes(OneServer):
    """Segments on two nodes of Citus."""

    schema, distribute = "madlib", "SELECT create_distributed_table('flowers', 'id', shard_count => 4)"
    keys = property(
        lambda self: [
            row["k"] for row in self.db.run("SELECT DISTINCT __dist_key__ AS k FROM flowers_packed ORDER BY 1")
        ]
    )

    def __init__(self, server):
        self.nodes = Nodes(2)
        self.db, self.workers = (
            self.nodes.db,
            {f"w{number}": Client(cluster, "postgres") for number, cluster in enumerate(self.nodes.workers, 1)},
        )

    def segments_elsewhere(self):
        return self.db.run(
            "SELECT nodename, nodeport, count(*) FROM citus_shards "
            "WHERE table_name = 'flowers_packed'::regclass GROUP BY 1, 2"
        )

    def raw_rows(self):
        self.db.run(
            "DROP TABLE IF EXISTS rawp; CREATE TABLE rawp (LIKE flowers); SELECT create_distributed_table("
            "'rawp', 'id', shard_count => 2, colocate_with => 'none'); INSERT INTO rawp SELECT * FROM flowers"
        )
        return [*self.workers.values()]

    def close(self):
        for worker in self.workers.values():
            worker.close()
        self.nodes.stop()


class GreenplumCluster(OneServer):
    """Segments on those of a Greenplum."""

    keys = property(
        lambda self: [row["dist_key"] for row in self.db.run("SELECT dist_key FROM madlib.mop_host_segment ORDER BY 1")]
    )
    lacks = ("predictions by worker sessions", "custom functions")

    def __init__(self, server):
        greenplum.needed("tests/thorough/engines/test_engines.py of Greenplum")
        self.made = greenplum.Database("engine")
        self.db, self.workers = self.made.db, {}

    def trainers(self, place, pid):
        return [trainer for trainer in trainers() if of_backend(trainer) in greenplum.processes(self.db, pid)]

    def segments_elsewhere(self):
        return []

    def raw_rows(self):
        self.db.run("DROP TABLE IF EXISTS rawp; CREATE TABLE rawp AS TABLE flowers")

    def close(self):
        self.made.close()


def prepared(made):
    """The fixture of EngineConformance: an engine with settings, packed rows and an architecture."""
    if made.servers:
        made.db.run(f"SET pg_mop.servers = '{made.servers}'")
    made.db.run(f"SET pg_mop.seed = {SEED}; SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    make_data(made.db, rows=101, segments=3, buffer_size=9, seed=SEED, then=made.distribute)
    made.db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(made.db, "arch", dense())
    yield made
    made.close()


def nothing_is_left(engine):
    """No run and no state of a run that is over, on any other server."""
    for worker in engine.workers.values():
        assert worker.value(f"SELECT count(*) FROM {engine.schema}.mop_run") == 0
        assert worker.value("SELECT count(*) FROM pg_class WHERE relname ~ '^mop_state_[0-9]'") == 0


class Halted:
    """A client's call that predicts for `rawp` into the table `output`, and waits for trainers that are stopped.

    `place`: a client of a server whose worker sessions, `stopped` (process ids), wait; `run_id`: the call's."""

    def __init__(self, engine, output):
        engine.needs("predictions by worker sessions")
        self.place, self.client = engine.raw_rows()[0], engine.db.another()
        for once in tries(5):  # (a call may end before its trainers are stopped)
            engine.fit("flowers_packed", "warm", "mst", iterations=1, db=self.client)
            self.call = Calling(
                self.client,
                f"DROP TABLE IF EXISTS {output}; SELECT madlib.madlib_keras_predict('models', "
                f"'rawp', 'id', 'x', '{output}', 'prob', {engine.use_gpus}, 1)",
            )
            leased = self._stop()
            self.stopped = [of_backend(pid) for pid in leased]
            once.counts = self.stopped and eventually(self.works, 20)
            if not once.counts:
                for pid in leased:
                    os.kill(pid, signal.SIGCONT)
                self.call.end()
        self.run_id = engine.db.value("SELECT run_id FROM madlib.mop_runs WHERE status = 'running'")

    def _stop(self):
        """Stop the trainers of the call's worker sessions as soon as they are leased: their process IDs."""
        sessions = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_mop run%'"
        while self.call.thread.is_alive():
            if leased := trainers():
                ours = {row["pid"] for row in self.place.run(sessions)}
                if found := [pid for pid in leased if of_backend(pid) in ours]:
                    for pid in found:
                        os.kill(pid, signal.SIGSTOP)
                    return found
        return []

    def works(self):
        """True while one of these sessions does."""
        return any(
            self.place.value("SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s", [pid])
            for pid in self.stopped
        )


def ordered(rows):
    return sorted(rows, key=lambda row: (row["id"], row["class_value"]))


def predicted(engine, table, kind):
    db = engine.db
    db.run("DROP TABLE IF EXISTS out")
    db.run(f"SELECT madlib.madlib_keras_predict('models', '{table}', 'id', 'x', 'out', {kind}, {engine.use_gpus}, 1)")
    return ordered(db.run("SELECT * FROM out"))


class EngineConformance:
    def test_the_segments_are_where_they_should_be(self, engine):
        db = engine.db
        counts = db.run("SELECT __dist_key__ AS k, sum(y_shape[1]) AS n FROM flowers_packed GROUP BY 1 ORDER BY 1")
        assert [c["k"] for c in counts] == engine.keys and sum(c["n"] for c in counts) == 101 and len(counts) == 3
        assert len(engine.segments_elsewhere()) == len(engine.workers)

    def test_what_an_earlier_run_has_trained_is_not_trained_again(self, engine):
        db, trained = engine.db, "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train'"
        selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.02, 0.03)])
        db.run("SET pg_mop.reuse = on")
        try:
            first = engine.fit("flowers_packed", "models", "mst", iterations=2, frequency=1)
            again = engine.fit("flowers_packed", "same", "mst", iterations=2, frequency=1)
            longer = engine.fit("flowers_packed", "longer", "mst", iterations=3, frequency=1)
            assert [db.value(trained, [run_id]) for run_id in (first, again, longer)] == [12, 0, 6]
            for run_id, evaluated in ((first, 12), (again, 0), (longer, 6)):
                assert db.run(
                    "SELECT DISTINCT status, units_done, units_total FROM madlib.mop_progress WHERE run_id = %s",
                    [run_id],
                ) == [{"status": "finished", "units_done": evaluated, "units_total": evaluated}]
            db.run("SET pg_mop.reuse = off; DROP TABLE IF EXISTS whole, whole_info, whole_summary")
            db.run("SELECT madlib.mop_replay(%s, 'whole')", [longer])
            for one, other in (("models", "same"), ("longer", "whole")):
                pairs = db.run(
                    f"SELECT a.model_weights AS a, b.model_weights AS b FROM {one} a JOIN {other} b USING (mst_key)"
                )
                assert [engine.same(bytes(row["a"]), bytes(row["b"])) for row in pairs] == [True, True]
                info = "SELECT training_loss || training_metrics AS found FROM {}_info ORDER BY mst_key"
                for row, again in zip(db.run(info.format(one)), db.run(info.format(other)), strict=True):
                    assert row["found"] == engine.again(again["found"])
            db.run("SET pg_mop.reuse = on; SELECT madlib.mop_more(%s, 2, 1)", [first])
            more = db.value("SELECT max(run_id) FROM madlib.mop_runs")
            assert db.value(trained, [more]) == 0, "the longer run has trained it"
            (pair,) = db.run(
                "SELECT a.model_weights AS a, b.model_weights AS b FROM models a JOIN longer b USING (mst_key) "
                "WHERE mst_key = 2"
            )
            assert engine.same(bytes(pair["a"]), bytes(pair["b"]))
            db.run("SELECT madlib.mop_drop_checkpoints()")
            assert db.value("SELECT count(*) FROM madlib.mop_checkpoints") == 0
        finally:
            db.run("RESET pg_mop.reuse")

    def test_the_final_weights_are_plain_keras_ones_bit_for_bit(self, engine):
        db = engine.db
        selection(
            db,
            "mst",
            "arch",
            [(1, ADAM.format(rate), f"batch_size={size}") for rate, size in ((0.02, 8), (0.05, 13), (0.01, 8))],
        )
        run_id = engine.fit("flowers_packed", "models", "mst", iterations=2, validation="flowers_val", frequency=1)
        assert_invariants(db, run_id)
        jobs = []
        for key, (rate, size) in enumerate(((0.02, 8), (0.05, 13), (0.01, 8)), 1):
            visits = db.run(
                "SELECT segment FROM madlib.mop_visit_order WHERE run_id = %s AND mst_key = %s "
                "ORDER BY iteration, position",
                [run_id, key],
            )
            jobs.append(
                {
                    "architecture": dense(),
                    "optimizer": "Adam",
                    "arguments": {"learning_rate": rate},
                    "loss": "categorical_crossentropy",
                    "metrics": ["accuracy"],
                    "batch_size": size,
                    "epochs": 1,
                    "seed": int(np.random.SeedSequence([SEED, 1]).generate_state(1)[0]),
                    "visits": [buffers(db, "flowers_packed", v["segment"]) for v in visits],
                }
            )
        for key, job in enumerate(replayed(jobs, backend=engine.backend, use_gpus=engine.use_gpus), 1):
            ours = bytes(db.value("SELECT model_weights FROM models WHERE mst_key = %s", [key]))
            assert engine.as_keras(ours, base64.b64decode(job["plain"]))
        nothing_is_left(engine)

    def test_metrics_are_those_of_all_rows(self, engine):
        db = engine.db
        row = db.run("SELECT * FROM models_info WHERE mst_key = 2")[0]
        assert len(row["validation_loss"]) == len(row["training_loss"]) == 2
        db.run(
            "DROP TABLE IF EXISTS scores; "
            f"SELECT madlib.madlib_keras_evaluate('models', 'flowers_val', 'scores', {engine.use_gpus}, 2)"
        )
        assert db.value("SELECT loss FROM scores") == engine.close_to(row["validation_loss_final"])
        assert db.value("SELECT metric FROM scores") == engine.close_to(row["validation_metrics_final"])

    def test_evaluation_on_all_segments_leaves_nothing(self, engine):
        db = engine.db
        db.run(
            "DROP TABLE IF EXISTS scores, alone; CREATE TEMP TABLE copy AS TABLE flowers_val; "
            "CREATE TEMP TABLE copy_summary AS TABLE flowers_val_summary"
        )
        runs = db.value("SELECT count(*) FROM madlib.mop_runs")
        call = f"SELECT madlib.madlib_keras_evaluate('models', '{{}}', '{{}}', {engine.use_gpus}, 1)"
        assert runs_made(db, lambda: db.run(call.format("copy", "alone")))[1] == 0
        assert runs_made(db, lambda: db.run(call.format("flowers_val", "scores")))[1] == 1
        assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs
        mine, theirs = db.run("SELECT * FROM scores")[0], db.run("SELECT * FROM alone")[0]
        assert mine.pop("all_metrics") == engine.close_to(theirs.pop("all_metrics"))
        assert (
            mine["loss"] == engine.close_to(theirs["loss"])
            and mine["metric"] == engine.close_to(theirs["metric"])
            and mine["metrics_type"] == theirs["metrics_type"]
        )
        nothing_is_left(engine)

    @pytest.mark.parametrize("kind", ["'prob'", "'response'", "2", "0.3::float8"])
    def test_predictions_for_partitions_are_those_of_one_session(self, engine, kind):
        engine.raw_rows()
        assert predicted(engine, "rawp", kind) == alike(predicted(engine, "flowers", kind), engine.tolerance)
        nothing_is_left(engine)

    def test_a_session_that_dies_while_it_predicts_is_replaced(self, engine):
        db = engine.db
        wanted, halted = predicted(engine, "flowers", "'prob'"), Halted(engine, "out")
        for pid in halted.stopped:
            halted.place.run("SELECT pg_terminate_backend(%s)", [pid])
        assert halted.call.end() is None
        assert ordered(db.run("SELECT * FROM out")) == alike(wanted, engine.tolerance)
        nothing_is_left(engine)
        halted.client.close()

    def test_a_cancel_while_it_predicts_leaves_nothing(self, engine):
        db, halted = engine.db, Halted(engine, "never")
        assert "trains nothing" in str(db.error("SELECT madlib.mop_add_trial(%s, 1, 'x', 'y')", [halted.run_id]))
        db.run("SELECT pg_cancel_backend(%s)", [halted.client.connection.info.backend_pid])
        assert halted.call.end().pgcode == "57014"
        assert db.value("SELECT to_regclass('never')") is None
        assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE run_id = %s", [halted.run_id]) == 0
        nothing_is_left(engine)
        halted.client.close()

    def test_what_a_killed_caller_leaves_is_dropped_by_the_next_call(self, engine):
        db, halted = engine.db, Halted(engine, "never")
        db.run("SELECT pg_terminate_backend(%s)", [halted.client.connection.info.backend_pid])
        assert halted.call.end() is not None
        assert eventually(
            lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [halted.run_id]) == "failed"
        )
        for call in ("resume(%s)", "replay(%s, 'again')"):
            error = db.error(f"SELECT madlib.mop_{call}", [halted.run_id])
            assert "trains nothing" in str(error) and "Make that call once more" in str(error)
        assert eventually(lambda: not halted.works(), 60)
        # (a call with worker sessions drops it; predictions for a small local table have them if several trainers are idle)
        engine.fit("flowers_packed", "warm", "mst", iterations=1)
        assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE run_id = %s", [halted.run_id]) == 0
        assert predicted(engine, "rawp", "'prob'") == alike(predicted(engine, "flowers", "'prob'"), engine.tolerance)
        nothing_is_left(engine)

    def test_averaging_is_replicas_in_plain_keras_averaged_by_hand(self, engine):
        db = engine.db
        db.run("DROP TABLE IF EXISTS one, one_summary")
        db.run(
            "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', 1, %s, 'batch_size=8, epochs=2', 3, "
            f"{engine.use_gpus}, 'flowers_val', 1)",
            [ADAM.format(0.05)],
        )
        (theirs,) = replayed(
            [
                {
                    "architecture": dense(),
                    "optimizer": "Adam",
                    "arguments": {"learning_rate": 0.05},
                    "batch_size": 8,
                    "loss": "categorical_crossentropy",
                    "metrics": [],
                    "epochs": 2,
                    "iterations": 3,
                    "seed": int(np.random.SeedSequence([SEED, 1]).generate_state(1)[0]),
                    "visits": [buffers(db, "flowers_packed", segment) for segment in engine.keys],
                }
            ],
            average=True,
            backend=engine.backend,
            use_gpus=engine.use_gpus,
        )
        a = np.frombuffer(bytes(db.value("SELECT model_weights FROM one")), "<f4")
        b = np.frombuffer(base64.b64decode(theirs), "<f4")
        assert np.abs(a - b).max() <= engine.averaged * np.abs(b).max()
        row = db.run("SELECT * FROM one_summary")[0]
        assert len(row["training_loss"]) == len(row["validation_loss"]) == 3
        for table, loss in (("flowers_val", "validation_loss_final"), ("flowers_packed", "training_loss_final")):
            db.run(
                "DROP TABLE IF EXISTS scores; SELECT madlib.madlib_keras_evaluate('one', %s, 'scores', %s)",
                [table, engine.use_gpus],
            )
            assert db.value("SELECT loss FROM scores") == engine.close_to(row[loss])
        nothing_is_left(engine)

    def test_custom_functions(self, engine):
        engine.needs("custom functions")
        db = engine.db
        three = pickled("three", "def three(y_true, y_pred):\n    return y_pred[:, 0] * 0 + 3.0\n")
        db.run("SELECT madlib.load_custom_function('functions', %s, 'three')", [three])
        for worker in engine.workers.values():
            worker.run(f"SELECT {engine.schema}.load_custom_function('functions', %s, 'three')", [three])
        compiled = ADAM.format(0.01).replace("accuracy", "three")
        selection(db, "custom", "arch", [(1, compiled, "batch_size=8")], "functions")
        run_id = engine.fit("flowers_packed", "customs", "custom", iterations=1)
        assert_invariants(db, run_id)
        assert db.value("SELECT training_metrics_final FROM customs_info") == 3
        nothing_is_left(engine)

    def test_a_search_is_trained_there_too(self, engine):
        db = engine.db
        db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials")
        db.run(f"""SELECT madlib.mop_search('flowers_packed', 'found', 'arch', $${{'loss': ['categorical_crossentropy'],
            'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}}], 'batch_size': [8, 16]}}$$,
            'asha', 'iterations=3, trials=4, least=1', validation_table := 'flowers_val', use_gpus := {engine.use_gpus})""")
        assert db.value("SELECT count(*) FROM found_trials WHERE metric_final IS NOT NULL") == 4
        nothing_is_left(engine)
        db.run("DROP TABLE IF EXISTS refound, refound_info, refound_summary, refound_trials")
        db.run("SELECT madlib.mop_replay(%s, 'refound')", [last_run(db)])
        pairs = db.run("SELECT a.model_weights AS a, b.model_weights AS b FROM found a JOIN refound b USING (mst_key)")
        assert len(pairs) == 4 and all(engine.same(bytes(row["a"]), bytes(row["b"])) for row in pairs)
        nothing_is_left(engine)

    def test_children_inherit_the_weights_of_parents_from_wherever_these_are(self, engine):
        db = engine.db
        db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials, family")
        db.run("""SELECT madlib.mop_space('family', 'arch', ARRAY[1], '[{"change": "value", "match": {"class": "Dense",
            "position": 1}, "argument": "units", "choices": [8, 12, 16]}]'::text)""")
        db.run(f"""SELECT madlib.mop_search('flowers_packed', 'found', NULL, $${{'loss': ['categorical_crossentropy'],
            'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.01, 0.015, 0.02, 0.025]}}], 'batch_size': [8]}}$$,
            'regularized-evolution', 'population=2, tournament=2, trials=6, iterations=1, parallel=1, inherit=on',
            validation_table := 'flowers_val', model_space := 'family', use_gpus := {engine.use_gpus})""")
        assert db.value("SELECT count(*) FROM found_trials WHERE metric_final IS NOT NULL") == 6
        heirs = "SELECT count(*) FROM madlib.mop_lineage WHERE run_id = %s AND inheritance IS NOT NULL"
        assert db.value(heirs, [last_run(db)]) >= 1
        nothing_is_left(engine)
        db.run("DROP TABLE IF EXISTS refound, refound_info, refound_summary, refound_trials")
        db.run("SELECT madlib.mop_replay(%s, 'refound')", [last_run(db)])
        pairs = db.run("SELECT a.model_weights AS a, b.model_weights AS b FROM found a JOIN refound b USING (mst_key)")
        assert len(pairs) == 6 and all(engine.same(bytes(row["a"]), bytes(row["b"])) for row in pairs)
        nothing_is_left(engine)

    def test_a_super_net_hops_and_its_members_have_scores(self, engine):
        db = engine.db
        db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials, found_one_shot, widths")
        db.run("""SELECT madlib.mop_space('widths', 'arch', ARRAY[1], '[{"change": "value", "match": {"class": "Dense",
            "position": 1}, "argument": "units", "choices": [8, 12, 16]}]'::text)""")
        db.run(f"""SELECT madlib.mop_search('flowers_packed', 'found', NULL, $${{'loss': ['categorical_crossentropy'],
            'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.01]}}], 'batch_size': [8]}}$$,
            'one-shot', 'iterations=2, retrain=1', validation_table := 'flowers_val', model_space := 'widths',
            use_gpus := {engine.use_gpus})""")
        assert db.value("SELECT count(*) FROM found_one_shot WHERE one_shot_score > 0") == 3
        assert db.value("SELECT count(*) FROM found_trials WHERE metric_final IS NOT NULL") == 1
        nothing_is_left(engine)
        db.run("DROP TABLE IF EXISTS refound, refound_info, refound_summary, refound_trials, refound_one_shot")
        db.run("SELECT madlib.mop_replay(%s, 'refound')", [last_run(db)])
        assert db.run("TABLE found_one_shot ORDER BY rank") == db.run("TABLE refound_one_shot ORDER BY rank")
        (row,) = db.run("SELECT a.model_weights AS a, b.model_weights AS b FROM found a JOIN refound b USING (mst_key)")
        assert engine.same(bytes(row["a"]), bytes(row["b"]))
        nothing_is_left(engine)

    def test_a_cancel_is_heard_within_two_seconds_and_the_run_goes_on(self, engine):
        db = engine.db
        other = db.another()
        other.run("SET pg_mop.kernel = plain")
        selection(db, "slow", "arch", [(1, ADAM.format(0.01), "batch_size=1, epochs=10")] * 2)
        find = "SELECT run_id FROM madlib.mop_run WHERE model_output_table = 'halted' AND status = 'running' AND run_id > %s"
        units = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'"
        for once in tries():  # (a machine that is busy, or stands still, may be late; a run may end before)
            db.run("DROP TABLE IF EXISTS halted, halted_info, halted_summary")
            before = db.value("SELECT coalesce(max(run_id), 0) FROM madlib.mop_run")
            call = Calling(
                other,
                "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'halted', 'slow', 2, "
                f"{engine.use_gpus})",
            )

            def is_at_work(call=call, before=before):
                run = db.value(find, [before])
                return run and db.value(units, [run]) >= 2 or not call.thread.is_alive()

            assert eventually(is_at_work, 120)
            run_id, began = last_run(db), time.monotonic()
            db.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
            error, took = call.end(), time.monotonic() - began
            assert error is None or error.pgcode == "57014"
            once.counts = error is not None and took < 3
            if not once.counts:
                db.run("SELECT madlib.mop_drop_run(%s)", [run_id])
        done = db.value(units, [run_id])
        db.run("SELECT madlib.mop_resume(%s)", [run_id])
        assert_invariants(db, run_id)
        assert db.value(units, [run_id]) > done
        nothing_is_left(engine)
        other.close()

    @staticmethod
    def _hurt(engine, what):
        """A call, and whether at each place a session or a trainer of it was killed before the call ended."""
        db = engine.db
        db.run("DROP TABLE IF EXISTS hurt, hurt_info, hurt_summary")
        iterations = 4  # (a trainer may have to be killed more than once, and each place in turn must still work)
        call = Calling(
            db.another(),
            "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'hurt', 'slow', "
            f"{iterations}, {engine.use_gpus})",
        )
        find = (
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_mop run %' AND state = 'active' "
            "AND query LIKE '%mop_run_unit%' AND application_name NOT LIKE '%relay'"
        )
        failed = "SELECT count(*) FROM madlib.mop_units WHERE status = 'failed'"
        for place in engine.workers.values() or [db]:
            before = db.value(failed)

            def at_work(place=place):
                return place.value(find)

            def is_heard(before=before):
                return db.value(failed) > before

            assert eventually(lambda: at_work() or not call.thread.is_alive(), 120)  # noqa: B023
            # (a session or a trainer that is killed between two units fails no unit)
            while call.thread.is_alive() and not is_heard():
                if what == "session":
                    place.run("SELECT pg_terminate_backend(%s)", [at_work()])
                else:
                    found = (pid := at_work()) and engine.trainers(place, pid)  # its first unit may just have begun
                    if found:
                        os.kill(found[0], signal.SIGKILL)
                eventually(is_heard, 1)
            if not is_heard():
                return call, False
        return call, True

    @pytest.mark.parametrize("what", ["session", "trainer"])
    def test_a_session_or_trainer_that_dies_is_replaced(self, engine, what):
        db = engine.db
        for once in tries():
            call, once.counts = self._hurt(engine, what)
            assert call.end() is None
            run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = 'hurt'")
            assert_invariants(db, run_id)
            call.client.close()
            if not once.counts:
                db.run("SELECT madlib.mop_drop_run(%s)", [run_id])
        assert db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'failed'", [run_id]) >= 1
        nothing_is_left(engine)
