"""What every training call does: check the data and the configurations, open a run, train, close the run.

madlib_keras_fit_multiple_model and madlib_keras_fit differ in where their configurations come from and in what they
write in the end.
"""

import contextlib
import math
import secrets
import time

import psycopg2

import mop_udf
from mop_udf import fork_server
from pg_mop import engines
from pg_mop.api import metrics
from pg_mop.api.checks import MOST_STAGES
from pg_mop.api.earlier import SAME, Earlier
from pg_mop.api.output import name_taken
from pg_mop.api.remote_runs import RemoteRuns
from pg_mop.backend import object_table, ray_cluster, settings
from pg_mop.backend.database import MopError
from pg_mop.catalog import Catalog, note_output
from pg_mop.connections.locks import Locks, is_locked
from pg_mop.packing.packed_table import PackedTable
from pg_mop.plan.cost_history import CostHistory
from pg_mop.run.controllers import FixedController
from pg_mop.run.executor import Executor
from pg_mop.run.servers import Server
from pg_mop.run.sessions import Sessions
from pg_mop.run.unit_specs import UnitSpecs

LAST_STAGES = 8  # of a net, whose units tell what it costs
SILENT = 10  # INFO lines between two evaluations
MOST_KEYS, MOST_FAILURES = 20, 5  # of configurations that failed, in a warning: named, and told why


class Training(RemoteRuns):
    """One training call. In order: the constructor, `check`, `run`, then the caller writes within `output`."""

    run_id = None
    unit_specs_class = UnitSpecs
    copied = True  # it uses copies of segments, where the settings say so
    _by_key = None  # mst_key -> its rows of `metrics`

    def __init__(self, db, function, source_table, validation_table, num_iterations, frequency, use_gpus, earlier=None):
        """Check what does not depend on the configurations. `earlier`: the run that goes on, or is done again.

        Raises MopError.
        """
        self.began, self.earlier = time.monotonic(), earlier
        self.db, self.function, self.use_gpus, self.options = db, function, bool(use_gpus), settings.load(db)
        if not self.copied:
            self.options["replicas"] = 1
        if earlier is not None:
            self._adopt(earlier)
        settings.check_kernel(self.options)
        if not self.options["trainers"]:
            settings.check_installed(self.options["keras_backend"])
        if num_iterations is None or num_iterations < 1:
            raise MopError(f"num_iterations must be at least 1, not {num_iterations}")
        if num_iterations > MOST_STAGES:
            raise MopError(f"num_iterations must be at most {MOST_STAGES}, not {num_iterations}")
        if frequency is not None and not 1 <= frequency <= num_iterations:
            raise MopError(
                f"metrics_compute_frequency must be from 1 to num_iterations ({num_iterations}) or NULL, "
                f"not {frequency}"
            )
        self.num_iterations = num_iterations
        self.frequency = num_iterations if frequency is None else frequency
        self.metrics_iterations = [
            i for i in range(1, num_iterations + 1) if i % self.frequency == 0 or i == num_iterations
        ]
        self.source = self.packed_table(source_table, "source table")
        self.validation = None
        if validation_table is not None:
            self.validation = self.packed_table(validation_table, "validation table")
        self.engine = engines.find(
            db, [t for t in (self.source, self.validation) if t is not None], self.options["replicas"] > 1
        )
        if self.options["replicas"] > 1:
            db.check_engine("pg_mop.replicas")
        if db.has_segments and self.options["keras_backend"] != "tensorflow":
            db.check_engine("pg_mop.keras_backend")
        if self.options["trainers"]:
            db.check_engine("pg_mop.trainers")
            self.capacity = ray_cluster.capacity(db, self.options["trainers"], self.use_gpus)
        elif self.use_gpus and not self.engine.ray_cluster:
            self.engine.check_gpus(self.options["keras_backend"])

    def packed_table(self, text, what):
        """The table that the caller calls `text`. Raises MopError."""
        return PackedTable(self.db, text, what)

    def _adopt(self, earlier):
        """Compute as the earlier run did, whatever is set now. (A replay may train each configuration by itself.)"""
        alone = earlier.replay and not self.options["sharing"]
        self.options.update({name: earlier.settings[name] for name in SAME if name in earlier.settings})
        self.options["sharing"] = earlier.sharing and not alone

    def reserve(self, output):
        """Keep other calls from the same output table (quoted) until this one ends. Raises MopError."""
        self.output_table = output
        self.locks = Locks(self.db, lambda: self.engine.target(None), self.options["lock_timeout"])
        self.locks.reserve(output)

    # --- the run ------------------------------------------------------------------------------------
    def run(self, output_name, arguments, tables):
        """Open the run, train, close the run. `output_name` and the dicts `arguments` and `tables` (names that are
        not among those) are for its row."""
        db, options = self.db, self.options
        self.started = db.value("SELECT clock_timestamp()::timestamp::text")
        self._keep_writers_out()
        self._find_segments()
        target = self.engine.target(None)
        self.catalog = catalog = Catalog(db, target)
        if (
            options["fork_server_idle_timeout"]
            and not options["trainers"]
            and any(segment.server is None and segment.host_segment is None for segment in self.segments.values())
        ):
            fork_server.expect(mop_udf.home, options["keras_backend"], options["fork_server_idle_timeout"])
        self.servers = {
            None: Server(None, target, catalog, None, db.extension, self.engine.info(options["keras_backend"]))
        }
        try:
            self._reach_servers()
            self._check_visible(catalog)
            self._check_copies()
            self.engine.check_whole(catalog.execute)
            catalog.housekeeping(options["checkpoint_mb"] << 20)
            self.earlier = earlier = self.earlier or self._unfinished(catalog, output_name, arguments)
            if earlier is not None:
                self._check_unchanged(earlier)
                self._adopt(earlier)
                self.take_up(earlier)
            self.cost_history = CostHistory(catalog.costs)
            self.seed = options["seed"] if options["seed"] is not None else secrets.randbits(31)
            resumes = earlier is not None and not earlier.replay
            sessions = None
            if resumes:
                self.run_id = self.servers[None].run_id = earlier.run_id
                catalog.reopen_run(self.run_id)
            try:
                if resumes:
                    # once more: its last units may have ended only now
                    earlier.read(catalog, self._reopen_remote_runs())
                self._make_plan(earlier)
                if resumes:
                    self._start_paths(catalog)
                else:
                    self._open_run(catalog, output_name, arguments, tables)
                    try:
                        self.adopt(list(self.plan.stages.values()))
                        self._start_paths(catalog)
                    except MopError as error:  # before any work
                        catalog.close_run(self.run_id, *_outcome(error))
                        catalog.drop_run(self.run_id)
                        self.run_id = None
                        raise
                self._output_name = output_name
                for server in self._remote_servers():
                    self._open_remote_run(server)
                self._make_board(earlier)
                self.unit_specs = self.unit_specs_class(
                    self.engine,
                    self._server,
                    {"training": self.source, "validation": self.validation},
                    self.segments,
                    self.plan,
                    self.board,
                    self.sharing,
                    self.outputs,
                    options,
                    self.seed,
                    self.functions and object_table.within_schema(self.functions),
                    self._digests_of,
                    self.use_gpus,
                    self.began,
                    self.replicas() if self.averaging else None,
                    self._kernels(earlier) if earlier is not None and earlier.replay else {},
                    cost_history=self.cost_history,
                )
                sessions = Sessions(
                    db, self._server, self.unit_specs.trainer, f"pg_mop run {self.run_id}", options["lock_timeout"]
                )
                controller = self.controller()
                if not (self.board.done and controller.done):
                    self._open(sessions)
                    if self.board.anywhere:
                        self.scheduler.homes.update(
                            {self.sharing.number(digest): worker for digest, worker in sessions.homes().items()}
                        )
                # what writes the output needs numpy: loaded now, while the trainers start
                from pg_mop.backend.arrays import state  # noqa: F401

                executor = Executor(
                    db,
                    catalog,
                    self.servers,
                    sessions,
                    self.run_id,
                    self.plan,
                    self.board,
                    self.scheduler,
                    self.unit_specs,
                    controller,
                    self.adopt,
                    options,
                    earlier.attempts if resumes else {},
                    self.wanted,
                    self.take_back,
                    self._away(),
                )
                self.executor = executor
                executor.go()
                self.engine.check_whole(catalog.execute)
                self.gather()
                self._drop_remote_runs()
                self._note_costs()
                if self.board.anywhere:
                    sessions.note_homes(
                        {
                            self.sharing.digest(number): worker
                            for number, worker in self.scheduler.homes.items()
                            if number is not None
                        }
                    )
                sessions.keep(options["session_idle_timeout"])
                self.failed = {**executor.failed, **self.misfits}
                self.metrics = catalog.metrics(self.run_id)
                self.kept = {key: self.plan.stages[stage].iteration for key, stage in controller.kept.items()}
                if self.averaging and self.failed or len(self.failed) == len(self.configurations):
                    raise MopError(self.all_failed(), detail=listed(self.failed), sqlstate="22000")
            except BaseException as error:
                if self.run_id is not None:
                    self._stop(catalog, sessions, error)
                if isinstance(error, psycopg2.Error):
                    raise MopError(
                        f"a session of run {self.run_id} failed: {str(error).strip()}", sqlstate=error.pgcode or "08006"
                    ) from None
                raise
        except BaseException:
            catalog.close()
            for server in self._remote_servers():
                server.catalog.close()
            raise
        # it stays open: the output is written with it, and there may be no other connection to be had then

    def _keep_writers_out(self):
        """To the call's end, where the caller may. Raises MopError."""
        for packed in (self.source, self.validation):
            if packed is not None:
                self.locks.share(packed)
                self.engine.share(packed)

    def _find_segments(self):
        """Note which segments there are: `segments`. Raises MopError."""
        self.segments = {}
        for dataset, packed in (("training", self.source), ("validation", self.validation)):
            for segment in self._segments_of(packed) if packed is not None else ():
                if (dataset, segment.key) in self.segments:
                    raise MopError(
                        f'"{packed.text}" has rows of "__dist_key__" {segment.key} in several partitions',
                        detail="A segment is in one place.",
                        sqlstate="42809",
                        hint="Partition it by LIST (__dist_key__), as the preprocessors do.",
                    )
                self.segments[dataset, segment.key] = segment
        if not self._keys("training"):
            raise MopError(f'source table "{self.source.text}" has no rows')

    def _segments_of(self, packed):
        """The segments of a packed table, with copies where there are to be some. Raises MopError."""
        segments = self.engine.segments(packed)
        if self.options["replicas"] == 1:
            return segments
        segments = self.engine.with_copies(packed, segments)
        unseen = {key for key, server, _ in packed.copies if server in self.engine.away}
        alone = [
            segment
            for segment in segments
            if segment.server is not None and not segment.copies and segment.key not in unseen
        ]
        if alone:
            raise MopError(
                f"pg_mop.replicas is {self.options['replicas']}, but segment {alone[0].key} of "
                f'"{packed.text}" has no copy on another server',
                hint="RESET pg_mop.replicas; or pack the table anew as it is set.",
                sqlstate="55000",
            )
        return segments

    def gather(self):
        """All units are done: read what other servers have for the caller, before that goes."""

    def controller(self):
        """What decides what is asked for while the run goes on."""
        return FixedController(self)

    def _start_paths(self, catalog):
        """Put the weights there that paths begin with; also of a run whose coordinator had no time for that."""
        begun = catalog.models(self.run_id)
        of = {
            key: c for c in self.configurations for key in (self._architectures() if self.averaging else [c["mst_key"]])
        }
        catalog.start(self.run_id, [stage for stage in self.plan.stages.values() if stage.number not in begun], of)

    def _open_run(self, catalog, output_name, arguments, tables):
        """Note a new run: `run_id`."""
        if self.earlier is not None:
            tables = {**tables, "replay_of": self.earlier.run_id}
        configurations = [{**c, "error": self.misfits.get(c["mst_key"])} for c in self._noted()]
        self.run_id = self.servers[None].run_id = self.open_run_of(
            catalog,
            self.function,
            output_name,
            configurations,
            {
                "arguments": arguments,
                "settings": {**self.options, "seed": self.seed},
                "tables": tables,
                "search_path": self.db.callers_path,
            },
        )

    def _digests_of(self, mst_key):
        """Of the custom functions of a configuration, or of a replica of the one that there is."""
        return self.by_key.get(mst_key, self.configurations[0])["functions"]

    def _noted(self):
        """The configurations as a run has them: each replica is one."""
        if self.averaging:
            return [{**c, "mst_key": key} for key in self._architectures() for c in self.configurations]
        return self.configurations

    def open_run_of(self, catalog, function, output_name, configurations, parameters):
        """Open a run in a catalog, here or on another server: its number there."""
        return catalog.open_run(
            {
                "function": function,
                "source_table": self.source.text,
                "validation_table": self.validation and self.validation.text,
                "model_output_table": output_name,
                "seed": self.seed,
                "scheduler": self.scheduler_name,
                "num_iterations": self.num_iterations,
                "metrics_iterations": self.metrics_iterations,
                "configurations": len(self.configurations),
                "segments": len(self._keys("training")),
                "sessions": self.wanted,
                "parameters": parameters,
                "expected_seconds": self.expected_seconds()
                if catalog is self.catalog
                else None,  # (a guest's is not seen)
            },
            [(dataset, s) for (dataset, _), s in self.segments.items()],
            configurations,
            self.plan,
            1 if self.averaging else len(self._keys("training")),
        )

    def _open(self, sessions):
        """Open the worker sessions: where not all can be had, those that can do the work."""
        workers = list(self.board.workers)
        refused = sessions.open(workers)
        if refused is not None:
            opened = [worker for worker in workers if worker in sessions.by_worker]
            if {self.board.server(worker) for worker in opened} < {self.board.server(worker) for worker in workers}:
                raise refused  # nobody else could do that server's segments
            self.board.serve(opened)
            self.db.warning(
                f"run {self.run_id} goes on with {len(opened)} of {len(workers)} worker sessions: {refused.message}",
                detail=refused.detail,
                hint=refused.hint,
            )

    def _unfinished(self, catalog, output_name, arguments):
        """The :class:`Earlier` run of the same call that was not finished, if this call goes on with it; or None."""
        run = catalog.unfinished(self.function, output_name, arguments) if self.options["resume"] else None
        if run is None:
            return None
        earlier = Earlier(catalog, run)
        difference = self.differs(earlier)
        if difference is None and not earlier.has_same_rows(self._fingerprints()):
            difference = "the packed rows have changed since"
        if difference is not None:
            self.db.info(f"run {earlier.run_id} of the same call is unfinished, but {difference}: this begins anew")
            return None
        self.db.info(
            f"going on with run {earlier.run_id} of the same call, of which {len(earlier.finished)} units are "
            f"done (SET pg_mop.resume = off; begins anew)"
        )
        return earlier

    def differs(self, earlier):
        """Why this call is not that of the run `earlier`; None: it is."""
        return earlier.differs(self._noted(), self.options)

    def _check_unchanged(self, earlier):
        """The rows must be those that the earlier run was trained on."""
        if not earlier.has_same_rows(self._fingerprints()):
            raise MopError(
                f'the packed rows of "{self.source.text}" or of its validation table have changed since run '
                f"{earlier.run_id} began",
                detail="They were written to, packed anew or moved.",
                hint=None
                if earlier.replay
                else "SET pg_mop.resume = off; and call again to train on the rows as they are.",
                sqlstate="55000",
            )

    def _fingerprints(self):
        return {key: segment.fingerprint for key, segment in self.segments.items()}

    def all_failed(self):
        """Begins the error that says that nothing could be trained."""
        return f"all {len(self.configurations)} configurations failed"

    @contextlib.contextmanager
    def output(self, previous):
        """Within it the caller writes the output tables; `previous`: those that a warm start replaces, or None.

        Then the run is finished. Where something goes wrong, its row says so.
        """
        try:
            with self.catalog:
                if previous is not None:
                    previous.set_aside()
                yield
                if previous is not None:
                    previous.drop()
                if self.options["reuse"] and self.options["checkpoint_mb"] and not self.averaging:
                    self.catalog.keep_checkpoints(self.run_id)
                seal = self.catalog.output_token(self.run_id)
                self.catalog.close_run(self.run_id, "finished", listed(self.failed) or None)
                for control_request in self.catalog.control_requests(
                    self.run_id
                ):  # they came in the instant of the last look
                    if "add" in control_request:
                        self.tell_of_late(f"added by {control_request['by']}")
            note_output(self.db, self.run_id, seal)
        except BaseException as error:
            taken = name_taken(self.db, error, self.run_id, self.output_table)
            self.abandon(taken or error)
            if taken is not None:
                raise taken from None
            raise

    def tell_of_late(self, reason):
        """Warn that a configuration came too late; `reason`: by whom."""
        self.db.warning(f"a configuration {reason} came too late to be trained: run {self.run_id} was at its end")

    def abandon(self, error):
        """The output could not be written: say so in the run's row. Its states stay."""
        try:
            with self.catalog:
                self.catalog.close_run(self.run_id, *_outcome(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {self.run_id} could not be closed: {trouble}")

    def _note_costs(self):
        """Keep what units have measured, for later runs: of each net by those that were trained last."""
        stages = {}
        for number in sorted(self.executor.versions) if self.executor is not None else ():
            stage = self.plan.stages[number]
            if self.executor.has_trained(stage):
                stages.setdefault(self.sharing.net(stage), []).append(number)
        try:
            self.catalog.note_costs(self.run_id, {net: numbers[-LAST_STAGES:] for net, numbers in stages.items()})
        except (MopError, psycopg2.Error) as trouble:  # the run is no worse for it
            self.db.plpy.log(f"pg_mop: what run {self.run_id} has cost could not be kept: {trouble}")

    def _stop(self, catalog, sessions, error):
        """End the run's sessions and say in its row why; the committed units stay."""
        stuck = sessions.abandon() if sessions is not None else []
        self._note_costs()
        self._close_remote_runs(_outcome(error))
        try:
            catalog.terminate(stuck)
            catalog.close_run(self.run_id, *_outcome(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {self.run_id} could not be closed: {trouble}")

    def _check_visible(self, catalog):
        """Other sessions must see the sources' very rows."""
        for (dataset, _), segment in self.segments.items():
            if segment.server is not None:
                continue
            packed = self._packed(dataset)
            try:
                seen = catalog.fingerprint(segment.fingerprint_sql)
            except psycopg2.errors.LockNotAvailable:
                raise is_locked(packed) from None
            if seen != segment.fingerprint:
                raise MopError(
                    f'"{packed.text}" has rows that other sessions do not see'
                    if seen is not None
                    else f'"{packed.text}" is not visible to other sessions',
                    detail="Worker sessions see committed data only, and no temporary tables.",
                    hint="COMMIT the transaction that made it (a temporary table: make it a permanent one).",
                    sqlstate="55000",
                )

    def _packed(self, dataset):
        return self.source if dataset == "training" else self.validation

    def replicas(self):
        """Rows of the segment of each of averaging's replicas."""
        return [self.segments["training", key].rows for key in self._keys("training")]

    def tell(self, iteration, left=None):
        """The INFO lines of an iteration, with the metrics where it has any; `left`: seconds to the end. Of iterations
        without metrics at most SILENT are told between two that have some."""
        if iteration not in self.metrics_iterations and iteration % math.ceil(self.frequency / SILENT):
            return
        catalog, rows = self.catalog, []
        seconds = catalog.training_seconds(self.run_id, iteration)
        if iteration in self.metrics_iterations:
            rows = catalog.metrics(self.run_id, iteration)
        self.db.info(
            metrics.lines(
                iteration,
                self.num_iterations,
                seconds,
                rows,
                self.named,
                len(self.configurations),
                {**self.executor.failed, **self.misfits},
                left,
            )
        )

    def named(self, mst_key):
        """Names a configuration in the INFO lines."""
        return f"mst_key={mst_key}: "

    @property
    def listed_iterations(self):
        """Those of which the output has lists of metrics; None: of all that there are."""
        return self.metrics_iterations if self.asks_for_all else None

    def metric_columns(self, mst_key, absent, written=None):
        """The metrics of a configuration as {column: (SQL type, value)}, see api.metrics.columns."""
        if self._by_key is None:
            self._by_key = {}
            for row in self.metrics:
                self._by_key.setdefault(row["mst_key"], []).append(row)
        return metrics.columns(
            self._by_key.get(mst_key, []), self.validation is not None, absent, written, self.listed_iterations
        )


def _outcome(error):
    """(status, error text) of a run that an exception ended."""
    # (not by its class: a cancel that is heard while a message is sent is a plpy.Error)
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return "cancelled" if sqlstate == "57014" else "failed", str(error).strip()


def listed(failed, most=None):
    """{mst_key: message} as lines of text; so many of them, if there are more."""
    lines = [f"mst_key {key}: {failed[key]}" for key in sorted(failed)[:most]]
    return "\n".join(lines + ([f"and {len(failed) - most} more"] if most is not None and len(failed) > most else []))


def warn_of_failures(db, failed, count, what, info):
    """Warn that of `count` configurations (`what` they are called) some failed; `info`: the table of their errors."""
    keys = ", ".join(map(str, sorted(failed)[:MOST_KEYS])) + (", ..." if len(failed) > MOST_KEYS else "")
    db.warning(
        f"{len(failed)} of {count} {what} failed: mst_key {keys}",
        detail=listed(failed, MOST_FAILURES),
        hint=f"SELECT mst_key, error FROM {info} WHERE error IS NOT NULL;",
    )
