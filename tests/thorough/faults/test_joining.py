"""A server joins a run in progress (mop_add_server)."""

import contextlib
import json
import os
import signal

import pytest

from pg_mop.packing.summary import OBSTACLE
from support.client import Calling, Client, add_server
from support.cluster import Cluster, eventually
from support.servers import CALL, Servers
from support.workload import ADAM, assert_invariants, holding, is_under_way, last_run, selection

REPLICAS = "SET pg_mop.replicas = 2"
DROP = (
    "DROP TABLE IF EXISTS models, models_info, models_summary, again, again_info, again_summary, others, others_info, "
    "others_summary"
)
TABLES = "SELECT count(*) FROM pg_class WHERE relname LIKE 'flowers_packed%%' AND relkind = 'r'"
BY = (
    "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' AND status = 'finished' AND server = %s"
)
# on the server that joins: rows of copies come slowly, and their tables are made after mop.seconds
SLOWLY = (
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$; "
    "CREATE FUNCTION slowly() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE made record; BEGIN FOR made IN "
    "SELECT * FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE 'public.flowers_packed_copy%%' AND "
    "object_type = 'table' LOOP PERFORM pg_sleep(coalesce(nullif(current_setting('mop.seconds', true), ''), '0')::float); "
    "EXECUTE 'CREATE TRIGGER slow BEFORE INSERT ON ' || made.object_identity || ' FOR EACH ROW EXECUTE FUNCTION public.slow()'"
    "; END LOOP; END $$; "
    "CREATE EVENT TRIGGER slowly ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION slowly()"
)
AT_ONCE = "DROP EVENT TRIGGER slowly; DROP FUNCTION slowly(); DROP FUNCTION slow() CASCADE"
COPYING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO public.flowers_packed_copy%%'"


class Joined(Servers):
    """Two workers with segments, and a third one without: w3."""

    def __init__(self):
        super().__init__(REPLICAS)
        self.third = Cluster(max_connections=40)
        add_server(self.db, "w3", self.third).close()
        rates = [0.01 * n for n in range(1, 7)]
        selection(self.db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=4") for rate in rates])

    def stop(self):
        self.third.stop()
        super().stop()

    @contextlib.contextmanager
    def busy(self):
        """Within the context, no unit begins on the first two workers: what is left for the third one does not go away."""
        with holding(Client(self.workers[0], "postgres"), "mop"), self.holding():
            yield

    def train(self, settings="", table="flowers_packed", out="models"):
        """Train in another session: (the Calling, the run_id), once units have been done."""
        self.db.run(DROP)
        client = Client(self.coordinator, "postgres")
        client.run(
            "SET pg_mop.kernel = plain; SET pg_mop.seed = 5; SET pg_mop.lock_timeout = '900s'; SET pg_mop.threads = 1; "
            f"SET pg_mop.reuse = off; {REPLICAS}; {settings}"
        )
        before = last_run(self.db) or 0
        call = Calling(client, CALL.replace("flowers_packed", table).replace("'models'", f"'{out}'"))
        assert eventually(lambda: (last_run(self.db) or 0) > before and is_under_way(self.db, more_than=2), 120)
        return call, last_run(self.db)

    def forget(self):
        """The packed table has no copies on w3 again."""
        self.db.run(
            "UPDATE flowers_packed_summary SET __internal_copies__ = (SELECT json_agg(c) FROM json_array_elements("
            "__internal_copies__::json) c WHERE c->>1 IS DISTINCT FROM 'w3')::text"
        )
        third = Client(self.third, "postgres")
        for row in third.run(
            "SELECT oid::regclass::text AS t FROM pg_class WHERE relname LIKE 'flowers_packed%%' AND relkind = 'r'"
        ):
            third.run(f"DROP TABLE {row['t']}")
        third.close()

    def is_joined(self, run_id):
        return self.db.value("SELECT count(*) FROM madlib.mop_remote_run WHERE run_id = %s AND server = 'w3'", [run_id])

    def same(self, run_id):
        """Every unit was done once, and an undisturbed run in the same order has the same weights."""
        assert_invariants(self.db, run_id)
        self.db.run(f"SET pg_mop.threads = 1; {REPLICAS}")
        self.db.run(
            "DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')", [run_id]
        )
        found = self.db.run(
            "SELECT a.model_weights = m.model_weights AS same FROM models m JOIN again a USING (mst_key)"
        )
        assert found == [{"same": True}] * 6
        for cluster in (*self.workers, self.third):
            client = Client(cluster, "postgres")
            assert client.value("SELECT count(*) FROM mop.mop_run") == 0
            client.close()


@pytest.fixture(scope="module")
def servers():
    made = Joined()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def alone(servers):
    yield
    servers.forget()


def said(call):
    return " ".join(call.client.connection.notices)


def refused(servers, run_id):
    """How often the run has said that a server does not join."""
    return servers.coordinator.said().count(f"run {run_id} goes on without server w3, which does not join")


def add(servers, run_id, name="w3"):
    servers.db.run("SELECT madlib.mop_add_server(%s, %s)", [run_id, name])


def test_a_server_joins_and_trains(servers):
    db = servers.db
    with servers.busy():
        call, run_id = servers.train()
        add(servers, run_id)
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 2, 120)
    assert call.end() is None
    assert f"run {run_id}: server w3 is joining, as postgres asks" in said(call)
    assert f"run {run_id}: server w3 has joined, with copies of 3 segments" in said(call)
    segments = db.value(
        "SELECT count(DISTINCT segment) FROM madlib.mop_units WHERE run_id = %s AND server = 'w3' AND status = 'finished'",
        [run_id],
    )
    assert segments > 1, "it trains on segments of several servers"
    loads = json.loads(db.value("SELECT madlib.mop_explain_run(%s, 'json')", [run_id]))["actual"]["sessions"]
    assert "w3" in {load["server"] for load in loads}
    assert db.value("SELECT details FROM madlib.mop_audit WHERE act = 'add server' AND run_id = %s", [run_id]) == {
        "server": "w3"
    }
    servers.same(run_id)


def test_a_later_run_finds_the_copies_and_trains_there_from_the_beginning(servers):
    db = servers.db
    with servers.busy():
        call, run_id = servers.train()
        add(servers, run_id)
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
    assert call.end() is None
    copies = db.value("SELECT __internal_copies__::json FROM flowers_packed_summary")
    assert sorted(key for key, server, *_ in copies if server == "w3") == [0, 1, 2]
    with servers.busy():
        call, later = servers.train()
        assert eventually(lambda: db.value(BY, [later, "w3"]) > 0, 120)
    assert call.end() is None
    servers.same(later)


def test_it_is_killed_and_comes_back(servers):
    db = servers.db
    with servers.busy():
        call, run_id = servers.train()
        add(servers, run_id)
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
        servers.third.kill()
        assert eventually(lambda: not servers.is_joined(run_id), 120)
        servers.third.start()
        assert eventually(lambda: servers.is_joined(run_id), 120)
    assert call.end() is None
    assert f"run {run_id}: server w3 is back" in said(call)
    servers.same(run_id)


def test_it_is_killed_while_segments_are_copied(servers):
    """Its table is locked, so that the copy waits."""
    with servers.busy():
        call, run_id = servers.train()
        third = Client(servers.third, "postgres")
        third.run(SLOWLY)
        add(servers, run_id)
        assert eventually(lambda: third.value(COPYING) > 0, 120)
        third.close()
        servers.third.kill()
        assert eventually(lambda: refused(servers, run_id), 120)
    assert call.end() is None
    assert f"run {run_id} goes on without server w3, which does not join" in said(call)
    assert servers.db.value(BY, [run_id, "w3"]) == 0
    servers.third.start()
    third = Client(servers.third, "postgres")
    third.run(AT_ONCE)
    third.close()
    servers.same(run_id)


@pytest.mark.parametrize("when", ["tables are made", "segments are copied"])
def test_it_does_not_answer_any_more(servers, when):
    """The backend of the coordinator's link stands still. The others answer, and the run goes on."""
    db, third, stopped = servers.db, Client(servers.third, "postgres"), []
    link = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_mop link%%'"
    with servers.busy():
        call, run_id = servers.train()
        third.run(SLOWLY)
        if when == "tables are made":
            third.run("ALTER FUNCTION slowly() SET mop.seconds = 1000")
        try:
            add(servers, run_id)
            if when == "segments are copied":
                assert eventually(lambda: third.value(COPYING) > 0, 120)
                stopped = [row["pid"] for row in third.run(link)]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                assert stopped
            assert eventually(lambda: refused(servers, run_id), 120)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert eventually(lambda: not third.run(link), 120), "it does not wait there for ever"
        third.run(AT_ONCE)
        add(servers, run_id)  # what is left behind is not in the way
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
    assert call.end() is None
    assert "no answer within" in said(call)
    third.close()
    servers.same(run_id)


@pytest.mark.parametrize("together", [False, True])
def test_two_runs_on_one_packed_table_invite_the_same_server(servers, together):
    """The second one uses the copies of the first, or makes its own."""
    db, third = servers.db, Client(servers.third, "postgres")
    with servers.busy():
        first, one = servers.train()
        second, two = servers.train(out="others")
        if together:
            db.run("SELECT madlib.mop_add_server(run_id, 'w3') FROM unnest(ARRAY[%s, %s]::bigint[]) run_id", [one, two])
        else:
            add(servers, one)
            assert eventually(lambda: servers.is_joined(one), 120)
            add(servers, two)
        assert eventually(lambda: servers.is_joined(one) and servers.is_joined(two), 120)
    assert (first.end(), second.end()) == (None, None)
    for call, run_id in ((first, one), (second, two)):
        assert f"run {run_id}: server w3 has joined, with copies of 3 segments" in said(call)
        assert_invariants(db, run_id)
    copies = [
        tuple(c) for c in db.value("SELECT __internal_copies__::json FROM flowers_packed_summary") if c[1] == "w3"
    ]
    assert len(set(copies)) == len(copies) == third.value(TABLES), "each table is noted once"
    assert len(copies) == 3 or together
    call, later = servers.train()
    assert call.end() is None
    servers.same(later)
    third.close()


def test_noted_copies_are_compared_and_stay_and_missing_ones_are_made_anew(servers):
    """Another run, or somebody, has noted a copy since this run began."""
    db, third = servers.db, Client(servers.third, "postgres")
    columns = db.value(
        "SELECT string_agg(format('%I %s', attname, format_type(atttypid, NULL)), ', ') FROM pg_attribute "
        "WHERE attrelid = 'flowers_packed'::regclass AND attnum > 0"
    )
    with servers.busy():
        call, run_id = servers.train()
        db.run(
            "UPDATE flowers_packed_summary SET __internal_copies__ = "
            """(__internal_copies__::jsonb || '[[0, "w3", "public", "flowers_packed_noted"]]')::text"""
        )
        third.run(f"CREATE TABLE public.flowers_packed_noted ({columns})")
        add(servers, run_id)
        assert eventually(lambda: refused(servers, run_id), 120)
        assert third.value(TABLES) == 1, "it stays, and nothing else"
        third.run("DROP TABLE public.flowers_packed_noted")
        add(servers, run_id)
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
    assert call.end() is None
    assert "the copy of segment 0 has other rows than the segment" in said(call)
    noted = db.value("SELECT __internal_copies__::json FROM flowers_packed_summary")
    assert sorted(name for _, server, _, name in noted if server == "w3") == [
        f"flowers_packed_copy_run_{run_id}_segment_{key}" for key in range(3)
    ]
    third.close()
    servers.same(run_id)


def test_the_coordinator_is_killed_and_the_resumed_run_goes_on_with_it(servers):
    with servers.busy():
        call, run_id = servers.train()
        add(servers, run_id)
        assert eventually(lambda: servers.db.value(BY, [run_id, "w3"]) > 1, 120)
        before = servers.db.value(BY, [run_id, "w3"])
        servers.coordinator.kill()
        assert call.end() is not None
    servers.revive()
    servers.db.run(f"SET pg_mop.threads = 1; {REPLICAS}; SELECT madlib.mop_resume(%s)", [run_id])
    assert servers.db.value(BY, [run_id, "w3"]) >= before
    servers.same(run_id)


def test_the_coordinator_is_killed_while_segments_are_copied(servers):
    with servers.busy():
        call, run_id = servers.train()
        third = Client(servers.third, "postgres")
        with holding(third, "mop"):  # its remote run cannot open
            add(servers, run_id)
            asked = "SELECT count(*) FROM pg_class WHERE relname LIKE 'flowers_packed_copy%%' AND relkind = 'r'"
            looking = Client(servers.third, "postgres")
            assert eventually(lambda: looking.value(asked) == 3, 120)
            looking.close()
            servers.coordinator.kill()
            assert call.end() is not None
    servers.revive()
    servers.db.run(f"SET pg_mop.threads = 1; {REPLICAS}; SELECT madlib.mop_resume(%s)", [run_id])
    servers.same(run_id)


def test_it_joins_while_another_server_is_away(servers):
    with servers.holding():
        call, run_id = servers.train()
        servers.workers[0].kill()
        away = "SELECT NOT EXISTS (SELECT 1 FROM madlib.mop_remote_run WHERE run_id = %s AND server = 'w1')"
        assert eventually(lambda: servers.db.value(away, [run_id]), 120)
        add(servers, run_id)
        assert eventually(lambda: servers.is_joined(run_id), 120)
    try:
        assert call.end() is None
    finally:
        servers.workers[0].start()
    assert f"run {run_id}: server w3 has joined, with copies of 3 segments" in said(call), "also of the segment of w1"
    servers.same(run_id)


# --- bad input ----------------------------------------------------------------------------------------


def test_servers_that_cannot_join_are_refused(servers):
    db = servers.db
    db.run(
        "CREATE SERVER nowhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1', dbname 'postgres'); "
        "CREATE USER MAPPING FOR postgres SERVER nowhere OPTIONS (user 'postgres'); "
        "CREATE SERVER unmapped FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1'); "
        f"CREATE SERVER itself FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '{servers.coordinator.port}', "
        "dbname 'postgres'); CREATE USER MAPPING FOR postgres SERVER itself OPTIONS (user 'postgres')"
    )
    third = Client(servers.third, "postgres")
    try:
        with servers.holding():
            call, run_id = servers.train()
            for name, text in (
                ("w1", f'server "w1" is one of the servers of run {run_id} already'),
                ("none", 'server "none" does not exist'),
                ("unmapped", "has no user mapping"),
                ("nowhere", 'cannot open a session on server "nowhere"'),
                ("itself", 'server "itself" is this server'),
                ("", "no server is named"),
                (None, "no server is named"),
            ):
                assert text in str(db.error("SELECT madlib.mop_add_server(%s, %s)", [run_id, name])), name
            version = third.value("SELECT extversion FROM pg_extension WHERE extname = 'pg_mop'")
            old = "CREATE OR REPLACE FUNCTION mop.mop_server_info() RETURNS json LANGUAGE sql AS $$SELECT '{}'::json$$"
            body = third.value("SELECT pg_get_functiondef('mop.mop_server_info'::regproc)")
            third.run(old.format('{"pg_mop": "0.1.0", "cores": 1, "gpus": 0, "identity": "x", "servers": []}'))
            error = db.error("SELECT madlib.mop_add_server(%s, 'w3')", [run_id])
            assert f'server "w3" has pg_mop 0.1.0, this one has {version}' in str(error)
            third.run(body)
            db.run("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger; "
                   "GRANT USAGE ON FOREIGN SERVER w3 TO stranger")  # fmt: skip
            stranger = Client(servers.coordinator, "postgres", "stranger")
            assert f"there is no run {run_id} of role" in str(
                stranger.error("SELECT madlib.mop_add_server(%s, 'w3')", [run_id])
            )
            stranger.close()
        assert call.end() is None
        assert f"run {run_id} is finished, not running" in str(
            db.error("SELECT madlib.mop_add_server(%s, 'w3')", [run_id])
        )
        assert "there is no run 99999" in str(db.error("SELECT madlib.mop_add_server(99999, 'w3')"))
    finally:
        db.run(
            "DROP SERVER nowhere CASCADE; DROP SERVER unmapped; DROP SERVER itself CASCADE; "
            "DROP OWNED BY stranger; DROP ROLE stranger"
        )
        third.close()


def test_a_run_without_copies_takes_no_server(servers):
    with servers.holding():
        call, run_id = servers.train("SET pg_mop.replicas = 1")
        error = servers.db.error("SELECT madlib.mop_add_server(%s, 'w3')", [run_id])
        assert f"run {run_id} has no copies of segments on other servers" in str(error)
        assert "SET pg_mop.replicas = 2" in error.diag.message_hint
    assert call.end() is None


def test_a_server_with_too_little_disk_does_not_join(servers):
    small = Cluster(max_connections=40, small_mb=48)
    try:
        fourth = add_server(servers.db, "w4", small)
        fourth.run(f"CREATE TABLESPACE small LOCATION '{small.small}'")
        fourth.run("ALTER DATABASE postgres SET default_tablespace = small")
        fourth.close()
        with servers.holding():
            call, run_id = servers.train()
            add(servers, run_id, "w4")
            told = f"run {run_id} goes on without server w4, which does not join"
            assert eventually(lambda: told in servers.coordinator.said(), 120)
        assert call.end() is None
        assert "its disk has 4" in said(call) and "MB left, and the copies of 3 segments need" in said(call)
    finally:
        servers.db.run("DROP SERVER w4 CASCADE")
        small.stop()


def test_an_administrator_drops_the_copies_with_the_packed_table(servers):
    db = servers.db
    db.run(
        "SET pg_mop.servers = 'w1, local, w2'; SET pg_mop.segments = 3; "
        "SELECT madlib.training_preprocessor_dl('flowers', 'other_packed', 'y', 'x', 9)"
    )
    with servers.busy():
        call, run_id = servers.train(table="other_packed")
        add(servers, run_id)
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
    assert call.end() is None
    third = Client(servers.third, "postgres")
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'other_packed%%' AND relkind = 'r'"
    assert third.value(left) == 3
    db.run("SELECT madlib.mop_drop_packed('other_packed')")
    assert third.value(left) == 0
    third.close()


# --- copies that are gone, or noted twice -------------------------------------------------------------


def test_a_server_that_is_removed_blocks_nothing(servers):
    """Its copies do not count, and a NOTICE tells that."""
    db = servers.db
    db.run(
        "SET pg_mop.servers = 'w1, local, w2'; SET pg_mop.segments = 3; "
        "SELECT madlib.training_preprocessor_dl('flowers', 'third_packed', 'y', 'x', 9)"
    )
    with servers.busy():
        call, run_id = servers.train(table="third_packed")
        add(servers, run_id)
        assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
    assert call.end() is None
    db.run("DROP SERVER w3 CASCADE")
    try:
        told = 'server "w3", on which "public"."third_packed_summary" notes copies of segments, does not exist any more'
        call, later = servers.train(table="third_packed")
        assert call.end() is None
        assert said(call).count(told) == 1
        assert_invariants(db, later)
        hint = said(call).split("To forget them: ")[1].split(";")[0]
        db.connection.notices.clear()
        db.run(f"BEGIN; {hint}")
        kept = db.value("SELECT __internal_copies__::json FROM third_packed_summary")
        assert {server for _, server, *_ in kept} == {"w1", "w2"}
        db.run("ROLLBACK; SELECT madlib.mop_drop_packed('third_packed')")
        assert told in " ".join(db.connection.notices)
        assert db.value("SELECT to_regclass('third_packed')") is None
    finally:
        add_server(db, "w3", servers.third).close()
        third = Client(servers.third, "postgres")
        for key in range(3):
            third.run(f"DROP TABLE IF EXISTS public.third_packed_copy_run_{run_id}_segment_{key}")
        third.close()


def test_a_packed_table_with_a_locked_copy_is_not_dropped(servers):
    """Nor does mop_drop_packed wait for ever."""
    db = servers.db
    db.run(
        "SET pg_mop.servers = 'w1, local, w2'; SET pg_mop.segments = 3; "
        "SELECT madlib.training_preprocessor_dl('flowers', 'held_packed', 'y', 'x', 9); SET pg_mop.lock_timeout = '500ms'"
    )
    worker = Client(servers.workers[1], "postgres")
    name = worker.value("SELECT oid::regclass FROM pg_class WHERE relname LIKE 'held_packed_copy%%' AND relkind = 'r'")
    worker.run(f"BEGIN; LOCK TABLE {name} IN SHARE MODE")
    error = db.error("SELECT madlib.mop_drop_packed('held_packed')")
    assert error.pgcode == "55P03" and "cannot be dropped" in str(error)
    worker.run("COMMIT")
    db.run("RESET pg_mop.lock_timeout; SELECT madlib.mop_drop_packed('held_packed')")
    assert db.value("SELECT to_regclass('held_packed')") is None
    worker.close()


# --- the summary of the packed table ------------------------------------------------------------------

EVIL = (
    "CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'evil'; RETURN NEW; END $$; "
    "CREATE TRIGGER evil BEFORE UPDATE ON flowers_packed_summary FOR EACH ROW EXECUTE FUNCTION evil()"
)
HARMFUL = (
    (EVIL, "it has triggers"),
    ("CREATE RULE evil AS ON UPDATE TO flowers_packed_summary DO ALSO NOTIFY evil", "it has rules"),
    ("ALTER TABLE flowers_packed_summary ENABLE ROW LEVEL SECURITY", "it has row security"),
    ("CREATE ROLE packer; ALTER TABLE flowers_packed_summary OWNER TO packer", "it belongs to another role"),
    ("DROP TABLE flowers_packed_summary; CREATE VIEW flowers_packed_summary AS SELECT 1 AS x", "it is no plain table"),
)


def test_a_summary_that_may_run_code_of_others_is_not_written(servers):
    """The copies are of this run alone then."""
    db = servers.db
    oid = "SELECT 'flowers_packed_summary'::regclass::oid::int"
    assert db.value(OBSTACLE.format(oid=db.value(oid))) is None
    for change, why in HARMFUL:
        db.run(f"BEGIN; {change}")
        assert db.value(OBSTACLE.format(oid=db.value(oid))) == why
        db.run("ROLLBACK")
    before = db.value("SELECT __internal_copies__ FROM flowers_packed_summary")
    db.run(EVIL)
    try:
        with servers.busy():
            call, run_id = servers.train()
            add(servers, run_id)
            assert eventually(lambda: db.value(BY, [run_id, "w3"]) > 0, 120)
        assert call.end() is None
        assert db.value("SELECT __internal_copies__ FROM flowers_packed_summary") == before
    finally:
        db.run("DROP FUNCTION evil() CASCADE")
    told = 'alone: they cannot be noted in "public"."flowers_packed_summary": it has triggers'
    assert f"the copies on server w3 are of this run {told}" in said(call)
    assert "evil" not in said(call)
