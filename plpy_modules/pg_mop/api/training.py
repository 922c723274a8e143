"""What every training call does: check the data and the configurations, open a run, train, close the run.

madlib_keras_fit_multiple_model and madlib_keras_fit differ in where their configurations come from and in what they
write in the end.
"""

import contextlib
import functools
import secrets
import time

import psycopg2

from mop_udf import architecture, params
from pg_mop import catalog, object_table, settings
from pg_mop.api import metrics
from pg_mop.api.earlier import SAME, Earlier
from pg_mop.api.output import name_taken
from pg_mop.catalog import Catalog
from pg_mop.database import MopError
from pg_mop.engines.postgresql import PostgreSQL
from pg_mop.execute.orders import Orders, Sharing, epochs
from pg_mop.execute.run import Executor
from pg_mop.execute.sessions import Sessions
from pg_mop.execute.steering import Steering
from pg_mop.locks import Locks, is_locked
from pg_mop.packed import PackedTable
from pg_mop.plan import identity, reuse
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board, Unit
from pg_mop.schedule.logged import Logged
from pg_mop.schedule.replicas import Replicas
from pg_mop.search.goals import goal

MOST_STAGES = 1_000_000  # of a run, all of which are asked for at its beginning


class Training:
    """One training call. In order: the constructor, `check`, `run`, then the caller writes within `output`.

    `configurations` are dicts with mst_key, model_id, compile_params, fit_params, model_arch and, where training does
    not start from the seed, weights_sql and weights_md5; `check` adds compile, fit and architecture. `averaging`: the
    one configuration is trained as replicas, one for each segment (see schedule/replicas.py).
    """

    averaging = False
    run_id = None
    preferred = None  # the run to go on from, if there are several
    adopted = 0     # stages that earlier runs had trained
    _by_key = None  # mst_key -> its rows of `metrics`
    _configurations = {}  # mst_key -> configuration, of as many as there were

    def __init__(self, db, function, source_table, validation_table, num_iterations, frequency, use_gpus, earlier=None):
        """Check what does not depend on the configurations. `earlier`: the run that goes on, or is done again.

        Raises MopError.
        """
        self.began, self.earlier = time.monotonic(), earlier
        self.db, self.function, self.use_gpus, self.options = db, function, bool(use_gpus), settings.load(db)
        if earlier is not None:
            self._adopt(earlier)
        if num_iterations is None or num_iterations < 1:
            raise MopError(f"num_iterations must be at least 1, not {num_iterations}")
        if frequency is not None and not 1 <= frequency <= num_iterations:
            raise MopError(f"metrics_compute_frequency must be from 1 to num_iterations ({num_iterations}) or NULL, "
                           f"not {frequency}")
        self.num_iterations = num_iterations
        self.frequency = num_iterations if frequency is None else frequency
        self.metrics_iterations = [i for i in range(1, num_iterations + 1)
                                   if i % self.frequency == 0 or i == num_iterations]
        self.source = PackedTable(db, source_table, "source table")
        self.validation = None
        if validation_table is not None:
            self.validation = PackedTable(db, validation_table, "validation table")
        self.gpus = settings.gpus() if self.use_gpus else 0
        if self.use_gpus and not self.gpus:
            raise MopError("use_gpus is set, but this server has no GPU", hint="Call with use_gpus => FALSE.")

    def _adopt(self, earlier):
        """Compute as the earlier run did, whatever is set now. (A replay may train each configuration by itself.)"""
        alone = earlier.replay and not self.options["sharing"]
        self.options.update({name: earlier.settings[name] for name in SAME if name in earlier.settings})
        self.options["sharing"] = self.options["sharing"] and not alone

    def take_up(self, earlier):
        """Go on with the configurations that an earlier run came to by itself."""

    # --- checks -------------------------------------------------------------------------------------
    def check(self, configurations, functions):
        """Check the configurations (see the class) with the custom functions of the object table `functions` (quoted).

        Those that do not fit the data are `misfits`, which fail while the others run. Raises MopError where a string
        or an architecture cannot be read, or where no configuration fits.
        """
        self.configurations, self.functions = configurations, functions
        if len(configurations) * self.num_iterations > MOST_STAGES:
            raise MopError(f"{len(configurations)} configurations of {self.num_iterations} iterations are more than "
                           f"{MOST_STAGES} iterations in all",
                           hint="Ask for fewer now; a later call with more goes on from there (pg_mop.seed must be "
                                "the same).")
        problems = [(c["mst_key"], problem) for c in configurations if (problem := self._problem(c))]
        if problems:
            raise MopError(self.unusable(len(problems)) + f": {problems[0][1]}",
                           detail="\n".join(f"mst_key {key}: {problem}" for key, problem in problems[:20]))
        self._check_data()

    def unusable(self, count):
        """Begins the error that says that `count` configurations cannot be trained."""
        return f"{count} configuration{'s' if count > 1 else ''} cannot be trained"

    def _problem(self, c):
        """What forbids a configuration, or None; fills in what its strings say."""
        if c.get("problem"):
            return c["problem"]
        try:
            c["compile"] = params.parse_compile_params(c["compile_params"])
            c["fit"] = params.parse_fit_params(c["fit_params"])
            c["architecture"] = architecture.check(c["model_arch"])
            c["resolver"] = params.Resolver(c["compile_params"], c["fit_params"])
            c["resolver"].check(self.num_iterations)
            architecture.check_dropout(c["architecture"], c["fit"]["dropout"])
        except (params.ParameterError, architecture.ArchitectureError) as error:
            return str(error)
        if problem := object_table.missing_names(self.db, self.functions, c["compile"]):
            return problem
        if c["fit"]["callbacks"] and not self.db.is_superuser():
            return "only a superuser may use callbacks: they write files on the server"
        return self._read_rule(c)

    def _read_rule(self, c):
        """Note in `c["rule"]` by which metric a configuration stops, or which of its states is the best: (name,
        dataset, 'min' or 'max'). What forbids it, or None."""
        stop = c["fit"]["stop"]
        if stop is None and c["fit"]["keep"] == "last":
            return None
        if self.averaging:
            return "stop and keep are for models that hop, not for averaged ones (pg_mop.fit_strategy = sequential)"
        try:
            metric, dataset, direction = self.read_metric(stop["metric"], stop["mode"]) if stop else self.judged_by()
        except MopError as error:
            return f"{error.message} ({error.hint})" if error.hint else error.message
        if metric != "loss" and metric not in c["compile"]["metrics"]:
            return f"it stops by the metric {metric!r}, which is not among its metrics"
        c["rule"] = metric, dataset, direction
        return None

    def judged_by(self):
        """By what the best state is chosen where nothing is said, as `read_metric` gives it."""
        return self.read_metric("loss")

    def read_metric(self, text, direction=None):
        """(name, dataset, 'min' or 'max') of what a caller calls a metric: 'accuracy', 'validation_loss', 'mine max'.
        Raises MopError."""
        name, _, given = text.strip().partition(" ")
        dataset = "validation" if self.validation is not None else "training"
        for prefix in ("validation", "training"):
            if name.startswith(prefix + "_"):
                name, dataset = name[len(prefix) + 1:], prefix
        if dataset == "validation" and self.validation is None:
            raise MopError(f"metric {text!r} needs a validation table",
                           hint=f"Give validation_table (validation_preprocessor_dl makes it), or take "
                                f"'training_{name}'.")
        if name != "loss":
            try:
                name = params.parse_compile_params(f"loss=mse,optimizer=SGD,metrics={name}")["metrics"][0]
            except (params.ParameterError, IndexError):
                raise MopError(f"metric {text!r} is not the name of one") from None
        direction = direction or given.strip().lower() or goal(name)
        if direction not in ("min", "max"):
            raise MopError(f'whether more or less of metric "{name}" is better is not known',
                           hint=f"Write '{name} max' or '{name} min'.")
        return name, dataset, direction

    def by_key(self, mst_key):
        """The configuration of that mst_key."""
        if len(self._configurations) != len(self.configurations):
            self._configurations = {c["mst_key"]: c for c in self.configurations}
        return self._configurations[mst_key]

    def _check_data(self):
        """The data's columns, and which configurations they do not fit (those fail, the others run)."""
        db, source = self.db, self.source
        shapes = source.shapes(db)
        self.shapes = [shapes[c] for c in source.columns]
        self.outputs = source.wanted_outputs(shapes)
        if self.validation is not None:
            theirs = self.validation.shapes(db)
            theirs = [theirs[c] for c in self.validation.columns]
            if theirs != self.shapes:
                raise MopError(f'"{self.validation.text}" holds rows of shapes {theirs}, "{source.text}" of '
                               f"{self.shapes}: they must be equal",
                               hint="Make it with validation_preprocessor_dl from the same training table.")
            if difference := self.validation.differs(source.summary):
                raise MopError(f'validation table "{self.validation.text}" was packed otherwise than "{source.text}": '
                               f"it has {difference}",
                               hint="Make it with validation_preprocessor_dl from the same training table.")
        self.misfits = {}
        for c in self.configurations:
            if problem := self._misfit(c):
                self.misfits[c["mst_key"]] = problem
        if self.configurations and len(self.misfits) == len(self.configurations):
            raise MopError(f'no configuration fits the data of "{source.text}": '
                           f"{next(iter(self.misfits.values()))}",
                           detail="\n".join(f"mst_key {k}: {m}" for k, m in list(self.misfits.items())[:20]),
                           hint="Load an architecture of that shape with load_keras_model.")

    def _misfit(self, c):
        """Why an architecture does not fit the data, or None; the trainer says it of what its JSON does not tell."""
        wanted, widths = self.shapes[:len(self.source.inputs)], self.outputs["widths"]
        try:
            inputs = architecture.input_shapes(c["architecture"])
            outputs = architecture.output_widths(c["architecture"], len(widths))
        except architecture.ArchitectureError as error:
            return str(error)
        if c["fit"]["class_weight"] and len(widths) > 1:
            return "class_weight needs a model with a single output"
        if inputs != wanted:
            return (f"the architecture takes input of shape {_one(inputs)}, "
                    f'"{self.source.text}" has {_one(wanted)}: input shape does not match')
        return architecture.output_misfit(outputs, self.outputs)

    def reserve(self, output):
        """Keep other calls from the same output table (quoted) until this one ends. Raises MopError."""
        self.output_table = output
        self.engine = PostgreSQL()
        self.locks = Locks(self.db, lambda: self.engine.connection_parameters(self.db), self.options["lock_timeout"])
        self.locks.reserve(output)

    # --- the run ------------------------------------------------------------------------------------
    def run(self, output_name, arguments, tables):
        """Open the run, train, close the run. `output_name` and the dicts `arguments` and `tables` (names that are
        not among those) are for its row."""
        db, options = self.db, self.options
        for packed in (self.source, self.validation):
            if packed is not None:
                self.locks.share(packed)
        engine = self.engine
        self.segments = {("training", s.key): s for s in engine.segments(db, self.source)}
        if not self.segments:
            raise MopError(f'source table "{self.source.text}" has no rows')
        if self.validation is not None:
            self.segments.update({("validation", s.key): s for s in engine.segments(db, self.validation)})
        self.connection = engine.connection_parameters(db)
        self.journal = journal = Catalog(db, self.connection)
        try:
            self._check_visible(journal)
            journal.housekeeping(options["checkpoint_mb"] << 20)
            self.earlier = earlier = self.earlier or self._unfinished(journal, output_name, arguments)
            if earlier is not None:
                self._check_unchanged(earlier)
                self._adopt(earlier)
                self.take_up(earlier)
            self.seed = options["seed"] if options["seed"] is not None else secrets.randbits(31)
            resumes = earlier is not None and not earlier.replay
            sessions = None
            if resumes:
                self.run_id = earlier.run_id
                journal.reopen_run(self.run_id)
            try:
                if resumes:
                    earlier.read(journal)  # once more: its last units may have ended only now
                self._make_plan(earlier)
                if not resumes:
                    self._open_run(journal, output_name, arguments, tables)
                    self.adopt(list(self.plan.stages.values()))
                self._make_board(earlier)
                self.orders = Orders(
                    db, engine, {"training": self.source, "validation": self.validation}, self.segments, self.plan,
                    self.board, self.sharing, self.outputs, options, self.seed, self.functions, self.gpus, self.began,
                    self.replicas() if self.averaging else None,
                    self._kernels(earlier) if earlier is not None and earlier.replay else {})
                sessions = Sessions(db, self.connection, self.orders.trainer, f"pg_mop run {self.run_id}")
                steering = self.steering()
                if not (self.board.done and steering.done):
                    self._open(sessions)
                # what writes the output needs numpy: loaded now, while the trainers start
                from mop_udf import state  # noqa: F401
                executor = Executor(db, journal, sessions, self.run_id, self.plan, self.board, self.scheduler,
                                    self.orders, steering, self.adopt, options, earlier.attempts if resumes else {},
                                    self.wanted)
                executor.go()
                sessions.keep(options["session_idle_timeout"])
                self.failed = {**executor.failed, **self.misfits}
                self.metrics = journal.metrics(self.run_id)
                self.kept = {key: self.plan.stages[stage].iteration for key, stage in steering.kept.items()}
                if self.averaging and self.failed or len(self.failed) == len(self.configurations):
                    raise MopError(self.all_failed(), detail=listed(self.failed), sqlstate="22000")
            except BaseException as error:
                if self.run_id is not None:
                    self._stop(journal, sessions, error)
                if isinstance(error, psycopg2.Error):
                    raise MopError(f"a session of run {self.run_id} failed: {str(error).strip()}",
                                   sqlstate=error.pgcode or "08006") from None
                raise
        except BaseException:
            journal.close()
            raise
        # it stays open: the output is written with it, and there may be no other connection to be had then

    def steering(self):
        """What decides what is asked for while the run goes on."""
        return Steering(self)

    def _make_plan(self, earlier):
        """What is to be done: `plan`; and `wanted`, by how many sessions."""
        options, sessions = self.options, None
        self.plan = Plan()
        if earlier is not None:
            self.misfits = {**self.misfits, **earlier.failed}
            if not earlier.replay:
                sessions = earlier.sessions
                earlier.restore(self.plan)
        self.sharing = Sharing(self._architectures())
        for c in self.configurations:
            if c["mst_key"] not in self.misfits:
                self._ask(c)
        for key in self.misfits:
            self.plan.withdraw(key)
        places = len(self._keys("training"))
        self.wanted = min(places, options["sessions"] or sessions or places)
        options["threads"] = options["threads"] or max(1, settings.cores() // self.wanted)
        self.scheduler_name = options["scheduler"] if not self.averaging else "randomized"

    def adopt(self, stages):
        """Take over what earlier runs have trained of these stages: those of which there is a state now."""
        if not self.options["reuse"] or self.averaging or self.earlier is not None and self.earlier.replay:
            return []
        datasets = len({dataset for dataset, _ in self.segments})
        known = self.journal.known_stages(self.run_id, [s.identity for s in stages if not s.trained], datasets)
        found = reuse.adoptable([s for s in stages if not s.trained], known, self.preferred) if known else []
        if not found or not self.journal.adopt(self.run_id, found):
            return []
        for stage, of, _ in found:
            stage.trained, stage.scored, stage.origin = True, of.scored, of.origin
        if not self.adopted:
            self.db.info(f"what run {found[0][1].run} has trained is not trained again (SET pg_mop.reuse = off;)")
        self.adopted += len(found)
        return [stage for stage, _, state in found if state]

    def _make_board(self, earlier):
        """By whom it is to be done, in which order: `board`, `scheduler`."""
        kind = Replicas if self.averaging else Board
        if earlier is not None and earlier.replay and not self.averaging:
            kind = functools.partial(Logged, order={
                self.plan.path(key)[iteration - 1].number: segments
                for (key, iteration), segments in earlier.order.items() if key not in self.misfits})
        self.board = kind(self.plan, self._keys("training"), self._keys("validation"))
        self.board.count_by(self.sharing.key, lambda stage: epochs(stage.parameters[1]))
        self.board.serve(list(self.board.places)[:self.wanted])
        if earlier is not None and not earlier.replay:
            self.board.restore(earlier.finished)
        self.scheduler = SCHEDULERS[self.scheduler_name](
            self.board, self.seed, lambda stage: self.sharing.key(self.plan.stages[stage])[0])

    def _architectures(self):
        """{mst_key: architecture JSON}; replicas are all of the one configuration."""
        if self.averaging:
            return {key + 1: self.configurations[0]["model_arch"] for key in range(len(self._keys("training")))}
        return {c["mst_key"]: c["model_arch"] for c in self.configurations}

    def _ask(self, c):
        """Ask for all iterations of a configuration, but for those before which it was stopped in an earlier run."""
        for key in range(1, len(self._keys("training")) + 1) if self.averaging else [c["mst_key"]]:
            until = self.num_iterations
            if self.earlier is not None and c.get("reason") is not None:
                until = self.earlier.iterations.get(key, 0)
            self.ask(c, until, self.metrics_iterations, key)

    def ask(self, c, until, evaluated, key=None):
        """Ask for a configuration's iterations up to `until`, with the metrics of some: (stages that are to be done,
        [(mst_key, stage), ...] of those that are new to it). `key`: its mst_key, or that of a replica of it."""
        key = key or c["mst_key"]
        before = len(self.plan.path(key))
        stages = self.plan.ask(key, self._root(c, key), c["resolver"].at, until, evaluated)
        return stages, [(key, stage) for stage in self.plan.path(key)[before:]]

    def add(self, c):
        """Take up a configuration (as in the constructor) while the run goes on; why it cannot be trained, or None."""
        problem = self._problem(c) or self._misfit(c)
        self.configurations.append(c)
        self.sharing.architectures[c["mst_key"]] = c["model_arch"]
        if problem:
            self.misfits[c["mst_key"]] = c["error"] = problem
        return problem

    def _root(self, c, key):
        """The identity of the start of a configuration's path: of everything that decides it but its parameters."""
        options = self.options
        # what is drawn, or done to files, for each configuration by itself is shared with none
        own = (self.averaging or not options["sharing"] or c["fit"]["callbacks"]
               or not options["same_start"] and c["weights_md5"] is None)
        return identity.root({
            "rows": [[self.source.table.oid, segment, self.segments["training", segment].fingerprint]
                     for segment in self._keys("training")],
            "columns": [self.source.inputs, self.source.outputs], "architecture": c["model_arch"],
            "model_id": c["model_id"], "weights": c.get("weights_md5"), "seed": self.seed,
            "functions": object_table.digests(self.db, self.functions, c["compile"]),
            "framework": [options["keras_backend"], options["kernel"]],
            "averaging": self.averaging, "own": key if own else None})

    def _kernels(self, earlier):
        """Of a replay: {unit: the kernel that it used}."""
        return {Unit(iteration, self.plan.path(key)[iteration - 1].number, "train", "training", segment): kernel
                for (key, iteration, segment), kernel in earlier.kernels.items() if key not in self.misfits}

    def _open_run(self, journal, output_name, arguments, tables):
        """Note a new run: `run_id`."""
        segments = len(self._keys("training"))
        if self.earlier is not None:
            tables = {**tables, "replay_of": self.earlier.run_id}
        configurations = [{**c, "error": self.misfits.get(c["mst_key"])} for c in self.configurations]
        if self.averaging:
            configurations = [{**c, "mst_key": key} for key in self._architectures() for c in configurations]
        self.run_id = journal.open_run({
            "function": self.function, "source_table": self.source.text,
            "validation_table": self.validation and self.validation.text, "model_output_table": output_name,
            "seed": self.seed, "scheduler": self.scheduler_name, "num_iterations": self.num_iterations,
            "metrics_iterations": self.metrics_iterations, "configurations": len(self.configurations),
            "segments": segments, "sessions": self.wanted,
            "parameters": {"arguments": arguments, "settings": {**self.options, "seed": self.seed}, "tables": tables},
        }, [(dataset, s) for (dataset, _), s in self.segments.items()], configurations, self.plan,
            1 if self.averaging else segments)

    def _open(self, sessions):
        """Open the worker sessions: where not all can be had, those that can do the work."""
        places = list(self.board.places)
        refused = sessions.open(places)
        if refused is not None:
            opened = [place for place in places if place in sessions.by_place]
            self.board.serve(opened)
            self.db.warning(f"run {self.run_id} goes on with {len(opened)} of {len(places)} worker sessions: "
                            f"{refused.message}", detail=refused.detail, hint=refused.hint)

    def _unfinished(self, journal, output_name, arguments):
        """The :class:`Earlier` run of the same call that was not finished, if this call goes on with it; or None."""
        run = journal.unfinished(self.function, output_name, arguments) if self.options["resume"] else None
        if run is None:
            return None
        earlier = Earlier(journal, run)
        difference = self.differs(earlier)
        if difference is None and self._fingerprints() != earlier.segments:
            difference = "the packed rows have changed since"
        if difference is not None:
            self.db.info(f"run {earlier.run_id} of the same call is unfinished, but {difference}: this begins anew")
            return None
        self.db.info(f"going on with run {earlier.run_id} of the same call, of which {len(earlier.finished)} units are "
                     f"done (SET pg_mop.resume = off; begins anew)")
        return earlier

    def differs(self, earlier):
        """Why this call is not that of the run `earlier`; None: it is."""
        configurations = [{**c, "mst_key": key} for key in self._architectures() for c in self.configurations] \
            if self.averaging else self.configurations
        return earlier.differs(configurations, self.options)

    def _check_unchanged(self, earlier):
        """The rows must be those that the earlier run was trained on."""
        if self._fingerprints() != earlier.segments:
            raise MopError(f'the packed rows of "{self.source.text}" or of its validation table have changed since run '
                           f"{earlier.run_id} began", detail="They were written to, packed anew or moved.",
                           hint=None if earlier.replay else
                           "SET pg_mop.resume = off; and call again to train on the rows as they are.",
                           sqlstate="55000")

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
            with self.journal:
                if previous is not None:
                    previous.set_aside()
                yield
                if previous is not None:
                    previous.drop()
                if self.options["reuse"] and self.options["checkpoint_mb"] and not self.averaging:
                    self.journal.keep_checkpoints(self.run_id)
                seal = self.journal.output_seal(self.run_id)
                self.journal.close_run(self.run_id, "finished", listed(self.failed) or None)
            catalog.note_output(self.db, self.run_id, seal)
        except BaseException as error:
            taken = name_taken(self.db, error, self.run_id, self.output_table)
            self.abandon(taken or error)
            if taken is not None:
                raise taken from None
            raise

    def abandon(self, error):
        """The output could not be written: say so in the run's row. Its states stay."""
        try:
            with self.journal:
                self.journal.close_run(self.run_id, *_outcome(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {self.run_id} could not be closed: {trouble}")

    def _stop(self, journal, sessions, error):
        """End the run's sessions and say in its row why; the committed units stay."""
        stuck = sessions.abandon() if sessions is not None else []
        try:
            journal.terminate(stuck)
            journal.close_run(self.run_id, *_outcome(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {self.run_id} could not be closed: {trouble}")

    def _keys(self, dataset):
        return [key for of, key in self.segments if of == dataset]

    def _check_visible(self, journal):
        """Other sessions must see the sources' very rows."""
        for (dataset, key), segment in self.segments.items():
            packed = self._packed(dataset)
            try:
                seen = journal.fingerprint(self.engine.fingerprint_sql(packed, key))
            except psycopg2.errors.LockNotAvailable:
                raise is_locked(packed) from None
            if seen != segment.fingerprint:
                raise MopError(
                    f'"{packed.text}" has rows that other sessions do not see'
                    if seen is not None else f'"{packed.text}" is not visible to other sessions',
                    detail="Worker sessions see committed data only, and no temporary tables.",
                    hint="COMMIT the transaction that made it (a temporary table: make it a permanent one).",
                    sqlstate="55000")

    def _packed(self, dataset):
        return self.source if dataset == "training" else self.validation

    def replicas(self):
        """Rows of the segment of each of averaging's replicas."""
        return [self.segments["training", key].rows for key in self._keys("training")]

    def tell(self, iteration):
        """The INFO line of an iteration, with the metrics where it has any."""
        journal, rows = self.journal, []
        seconds = journal.training_seconds(self.run_id, iteration)
        if iteration in self.metrics_iterations:
            rows = journal.metrics(self.run_id, iteration)
        self.db.info(metrics.lines(iteration, self.num_iterations, seconds, rows, self.named))

    def named(self, mst_key):
        """Names a configuration in the INFO lines."""
        return f"mst_key={mst_key}: "

    def metric_columns(self, mst_key, absent):
        """The metrics of a configuration as {column: (SQL type, value)}; `absent`: a metric that was not asked for."""
        if self._by_key is None:
            self._by_key = {}
            for row in self.metrics:
                self._by_key.setdefault(row["mst_key"], []).append(row)
        return metrics.columns(self._by_key.get(mst_key, []), self.validation is not None, absent,
                               self.kept.get(mst_key))


def _one(values):
    """A list as it is, or its only element."""
    return values[0] if len(values) == 1 else values


def _outcome(error):
    """(status, error text) of a run that an exception ended."""
    return "cancelled" if type(error).__name__ == "QueryCanceled" else "failed", str(error).strip()


def listed(failed):
    """{mst_key: message} as lines of text."""
    return "\n".join(f"mst_key {key}: {failed[key]}" for key in sorted(failed))
