"""Segments on several servers. The connection to one of them passes a relay that tests can cut."""

import contextlib
import os
import signal
import time

from support.client import Calling, Client, add_server
from support.cluster import Cluster, eventually
from support.relay import Relay
from support.workload import ADAM, assert_invariants, dense, holding, load, make_data, selection

CALL = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 3, FALSE, NULL, 1)"


class Servers:
    """A coordinator and two workers. The coordinator connects to the first worker by a relay."""

    def __init__(self, settings="", segments=3):
        """`settings`: SQL with more settings for packing and training; `segments`: dealt out to the three servers."""
        self.settings = f"SET pg_mop.threads = 1; {settings}"
        self.coordinator, *self.workers = (Cluster(max_connections=40) for _ in range(3))
        self.db = Client(self.coordinator, "postgres")
        self.db.run(
            "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; CREATE EXTENSION postgres_fdw"
        )
        self.relay = Relay(self.workers[0].port)
        for name, worker, port in zip(("w1", "w2"), self.workers, (self.relay.port, None)):
            add_server(self.db, name, worker, port).close()
        self.db.run(f"SET pg_mop.servers = 'w1, local, w2'; {self.settings}")
        make_data(self.db, rows=101, segments=segments, buffer_size=9)
        load(self.db, "arch", dense())
        selection(self.db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=4") for rate in (0.01, 0.02)])

    def begin(self, settings="", meanwhile=lambda: None):
        """Train in another session until the first worker has finished two units: (the Calling, the run_id). `meanwhile` is
        called again and again until then."""
        self.db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
        other = Client(self.coordinator, "postgres")
        other.run(
            f"SET pg_mop.kernel = plain; SET pg_mop.seed = 5; SET pg_mop.lock_timeout = '300s'; {self.settings}; "
            f"{settings}"
        )
        call = Calling(other, CALL)
        find = "SELECT max(run_id) FROM madlib.mop_run WHERE status = 'running'"
        done = (
            "SELECT count(*) FROM madlib.mop_unit JOIN madlib.mop_segment USING (run_id, dataset, segment) "
            "WHERE run_id = %s AND mop_segment.server = 'w1' AND mop_unit.status = 'finished'"
        )

        def at_work():
            found = self.db.value(find)
            return found and self.db.value(done, [found]) > 1 and found or meanwhile()

        run_id = eventually(at_work, 120)
        assert run_id, call.error
        return call, run_id

    @contextlib.contextmanager
    def running(self, settings=""):
        """As `begin`. Within the context the run does not end: no unit begins on the second worker. The `with` statement gets
        (the Calling, the run_id, the function that lets the waiting units there begin)."""
        with self.holding() as let_some_begin:
            yield *self.begin(settings, let_some_begin), let_some_begin

    def holding(self):
        """Within the context, no unit begins on the second worker, so that a running run does not end."""
        return holding(Client(self.workers[1], "postgres"), "mop")

    def check(self, run_id, replay=False):
        """Assert that every unit was done once, and that the workers have no rows of the run left.

        `replay`: assert also that an undisturbed run in the same order has the same weights.
        """
        assert_invariants(self.db, run_id)
        assert self.db.value("SELECT count(*) FROM models") == 2
        if replay:
            self.db.run(
                "DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')", [run_id]
            )
            assert self.db.value(
                "SELECT array_agg(a.model_weights = m.model_weights) FROM models m JOIN again a USING (mst_key)"
            ) == [True, True]
        for worker in self.workers:
            client = Client(worker, "postgres")
            assert client.value("SELECT count(*) FROM mop.mop_run") == 0
            client.close()

    def kill_and_start(self, call, run_id):
        """Kill and restart the first worker, and assert that the run continues without a loss."""
        self.workers[0].kill()
        time.sleep(1)
        self.workers[0].start()
        assert call.end() is None
        self.check(run_id, replay=True)

    def kill_at_work(self, run_id, meanwhile=lambda: None):
        """Kill the first worker while it has a unit of the run. (Of a server without a unit nobody notices at once.) Until then
        `meanwhile` is called again and again."""
        running = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND server = 'w1' AND status = 'running'"

        def caught():
            if not self.db.value(running, [run_id]):
                return meanwhile()
            self.hang()
            time.sleep(1)  # a commit may be on its way
            if self.db.value(running, [run_id]):
                return True
            self.go_on()
            return False

        assert eventually(caught, 120)
        self.workers[0].kill()

    def stop(self):
        self.relay.close()
        for cluster in (self.coordinator, *self.workers):
            cluster.stop()

    def signal(self, number):
        """Send a signal to all processes of the first worker."""
        for pid in (self.workers[0].process.pid, *self.workers[0].processes()):
            os.kill(pid, number)

    @contextlib.contextmanager
    def hanging(self):
        """Within the context, the first worker hangs."""
        self.hang()
        try:
            yield
        finally:
            self.go_on()

    def cut(self, times, seconds):
        """Cut the connections to the first worker `times` times, `seconds` apart."""
        for _ in range(times):
            self.relay.cut()
            time.sleep(seconds)

    def revive(self):
        """Start the killed coordinator again."""
        self.coordinator.start()
        self.db = Client(self.coordinator, "postgres")

    def hang(self):
        self.signal(signal.SIGSTOP)

    def go_on(self):
        self.signal(signal.SIGCONT)
