"""madlib_keras_fit_multiple_model: check everything, open a run, train, write the three output tables."""

import secrets

import psycopg2

from mop_udf import architecture, params, state
from pg_mop import __version__, catalog, object_table, settings
from pg_mop.catalog import Catalog
from pg_mop.database import MopError, quote_identifier, quote_literal, sql_function
from pg_mop.engines.postgresql import PostgreSQL
from pg_mop.execute.run import Executor
from pg_mop.execute.sessions import Sessions
from pg_mop.packed import PackedTable
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board


@sql_function
def madlib_keras_fit_multiple_model(db, source_table, model_output_table, model_selection_table, num_iterations,
                                    use_gpus, validation_table, metrics_compute_frequency, warm_start, name,
                                    description, use_caching):
    """Train every configuration of the selection table (contract 3). Arguments as in SQL; returns nothing.

    `use_caching` changes nothing: rows are always kept in the trainers while they fit pg_mop.cache_mb.
    """
    options = settings.load(db)
    call = Call(db, source_table, model_output_table, model_selection_table, num_iterations, bool(use_gpus),
                validation_table, metrics_compute_frequency, bool(warm_start), options)
    started = db.value("SELECT clock_timestamp()::timestamp::text")
    run_id, executor = call.run({
        "source_table": source_table, "model_output_table": model_output_table,
        "model_selection_table": model_selection_table, "num_iterations": num_iterations, "use_gpus": use_gpus,
        "validation_table": validation_table, "metrics_compute_frequency": metrics_compute_frequency,
        "warm_start": warm_start, "name": name, "description": description, "use_caching": use_caching})
    try:
        call.write(run_id, executor, started, name, description)
    except BaseException as error:
        call.close(run_id, error)
        raise


class Call:
    """One call: its checked arguments, then its run, then its output."""

    def __init__(self, db, source_table, model_output_table, model_selection_table, num_iterations, use_gpus,
                 validation_table, frequency, warm_start, options):
        self.db, self.options, self.use_gpus = db, options, use_gpus
        self.arguments = (source_table, model_output_table, model_selection_table, validation_table)
        self.warm_start = warm_start
        isolation = db.setting("transaction_isolation")
        if isolation != "read committed":
            raise MopError(f"training needs a transaction at isolation level read committed, not {isolation}",
                           detail="At another level this transaction cannot see what the worker sessions commit.",
                           hint="SET default_transaction_isolation = 'read committed';", sqlstate="25001")
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
        if warm_start:
            self.previous = PreviousRun(db, model_output_table)
            self.output = self.previous.names
        else:
            self.previous = None
            self.output = db.output_table(model_output_table, "_info", "_summary")
        self._read_selection(model_selection_table)
        self._check_data()
        self._check_gpus()

    # --- checks -------------------------------------------------------------------------------------
    def _read_selection(self, text):
        db = self.db
        hint = f"SELECT {db.extension}.generate_model_configs(...) (or load_model_selection_table) makes it."
        table = db.input_table(text, "model selection table", hint=hint)
        summary = db.input_table(db.suffixed(text, "_summary"), "summary of the model selection table", hint=hint)
        for relation, wanted in ((table, ("mst_key", "model_id", "compile_params", "fit_params")),
                                 (summary, ("model_arch_table", "object_table"))):
            missing = [c for c in wanted if c not in db.columns(relation)]
            if missing:
                raise MopError(f'{relation} has no column "{missing[0]}"', hint=hint)
        row = db.one(f"SELECT model_arch_table, object_table FROM {summary}")
        self.arch_table_name, self.object_table = row["model_arch_table"], row["object_table"]
        self.functions = None if self.object_table is None else object_table.check(db, self.object_table)
        arch = db.input_table(self.arch_table_name, "model architecture table",
                              hint=f"SELECT {db.extension}.load_keras_model(...) makes it.")
        self.configurations = db.execute(
            f"SELECT s.mst_key, s.model_id, s.compile_params, s.fit_params, a.model_arch::text AS model_arch, "
            f"md5(a.model_weights) AS weights_md5, a.model_id IS NOT NULL AS has_model "
            f"FROM {table} s LEFT JOIN {arch} a ON a.model_id = s.model_id ORDER BY s.mst_key")
        problems = []
        keys = [c["mst_key"] for c in self.configurations]
        if None in keys or len(set(keys)) < len(keys):
            raise MopError(f'model selection table "{text}" has mst_keys that are NULL or not unique')
        for c in self.configurations:
            if problem := self._start(c, arch) or self._problem(c):
                problems.append(f"mst_key {c['mst_key']}: {problem}")
        if problems:
            raise MopError(f'model selection table "{text}" has {len(problems)} configuration'
                           f'{"s" if len(problems) > 1 else ""} that cannot be trained: {problems[0]}',
                           detail="\n".join(problems[:20]))

    def _start(self, c, arch):
        """Fill in from which weights a configuration starts (contract 3, section 2.1). What forbids it, or None."""
        if self.previous is not None:
            if problem := self.previous.fill(c):
                return problem
        elif c["weights_md5"] is not None:
            c["weights_sql"] = f"SELECT model_weights FROM {arch} WHERE model_id = {int(c['model_id'])}"
        return None

    def _problem(self, c):
        """What forbids a configuration, or None; fills in what its strings say."""
        if not c["has_model"]:
            return f'model_id {c["model_id"]} is not in architecture table "{self.arch_table_name}"'
        try:
            c["compile"] = params.parse_compile_params(c["compile_params"])
            c["fit"] = params.parse_fit_params(c["fit_params"])
            c["architecture"] = architecture.check(c["model_arch"])
        except (params.ParameterError, architecture.ArchitectureError) as error:
            return str(error)
        if problem := object_table.missing_names(self.db, self.functions, c["compile"]):
            return problem
        if c["fit"]["callbacks"] and not self.db.is_superuser():
            return "only a superuser may use callbacks: they write files on the server"
        return None

    def _check_data(self):
        """The data's columns, and which configurations they do not fit (those fail, the others run)."""
        db, source = self.db, self.source
        shapes = source.shapes(db)
        self.shapes = [shapes[c] for c in source.columns]
        if self.validation is not None:
            theirs = self.validation.shapes(db)
            theirs = [theirs[c] for c in self.validation.columns]
            if theirs != self.shapes or self.validation.regression != source.regression:
                raise MopError(f'"{self.validation.text}" holds rows of shapes {theirs}, "{source.text}" of '
                               f"{self.shapes}: they must be equal",
                               hint="Make it with validation_preprocessor_dl from the same training table.")
        self.misfits = {}
        for c in self.configurations:
            if problem := self._misfit(c):
                self.misfits[c["mst_key"]] = problem
        if len(self.misfits) == len(self.configurations):
            raise MopError(f'no configuration fits the data of "{source.text}": '
                           f"{next(iter(self.misfits.values()))}",
                           detail="\n".join(f"mst_key {k}: {m}" for k, m in list(self.misfits.items())[:20]),
                           hint="Load an architecture of that shape with load_keras_model.")

    def _misfit(self, c):
        """Why an architecture does not fit the data, or None."""
        count = len(self.source.inputs)
        wanted, widths = self.shapes[:count], [shape[0] for shape in self.shapes[count:]]
        try:
            inputs = architecture.input_shapes(c["architecture"])
            units = architecture.output_units(c["architecture"], len(widths))
        except architecture.ArchitectureError as error:
            return str(error)
        if inputs != wanted:
            return (f"the architecture takes input of shape {_one(inputs)}, "
                    f'"{self.source.text}" has {_one(wanted)}: input shape does not match')
        if units != widths:
            what = "numbers" if self.source.regression else "classes"
            return f'the architecture outputs {_one(units)} {what} but "{self.source.text}" has {_one(widths)}'
        return None

    def _check_gpus(self):
        self.gpus = settings.gpus() if self.use_gpus else 0
        if self.use_gpus and not self.gpus:
            raise MopError("use_gpus is set, but this server has no GPU", hint="Call with use_gpus => FALSE.")

    # --- the run ------------------------------------------------------------------------------------
    def run(self, arguments):
        """Open the run, train, close the run. Returns (run_id, Executor)."""
        db, options = self.db, self.options
        self._lock_sources()
        engine = self.engine = PostgreSQL()
        self.segments = {("training", s.key): s for s in engine.segments(db, self.source)}
        if not self.segments:
            raise MopError(f'source table "{self.source.text}" has no rows')
        if self.validation is not None:
            self.segments.update({("validation", s.key): s for s in engine.segments(db, self.validation)})
        parameters = engine.connection_parameters(db)
        journal = Catalog(db, parameters)
        try:
            self._check_visible(journal)
            journal.housekeeping()
            seed = options["seed"] if options["seed"] is not None else secrets.randbits(31)
            board = Board([c["mst_key"] for c in self.configurations if c["mst_key"] not in self.misfits],
                          self._keys("training"), self.num_iterations, self.metrics_iterations,
                          self._keys("validation"))
            scheduler = SCHEDULERS[options["scheduler"]](board, seed)
            places = list(board.places)
            self.trainer_options = {
                "threads": options["threads"] or max(1, settings.cores() // len(places)),
                "keras_backend": options["keras_backend"], "cache_mb": options["cache_mb"],
                "idle_ms": 0}
            self.seed = seed
            source_name, output_name, _, validation_name = self.arguments
            run_id = self.run_id = journal.open_run({
                "function": "madlib_keras_fit_multiple_model", "source_table": source_name,
                "validation_table": validation_name, "model_output_table": output_name, "seed": seed,
                "scheduler": options["scheduler"], "num_iterations": self.num_iterations,
                "metrics_iterations": self.metrics_iterations, "configurations": len(self.configurations),
                "segments": len(places), "coordinator_pid": db.value("SELECT pg_backend_pid()"),
                "parameters": {"arguments": arguments, "settings": {**options, "seed": seed}},
            }, [{**c, "error": self.misfits.get(c["mst_key"])} for c in self.configurations],
                [(dataset, s) for (dataset, _), s in self.segments.items()])
            sessions = Sessions(db, parameters, self._options_of_place, f"pg_mop run {run_id}")
            try:
                sessions.open(places)
                executor = Executor(db, journal, sessions, run_id, board, scheduler, self._describe,
                                    lambda i: self._tell(journal, i), options["lock_timeout"])
                executor.go()
            except BaseException as error:
                self._stop(journal, sessions, error)
                raise
            sessions.keep(options["session_idle_timeout"])
            executor.failed.update(self.misfits)
            self.metrics = journal.metrics(run_id)
            if len(executor.failed) == len(self.configurations):
                journal.close_run(run_id, "failed", "all configurations failed")
                raise MopError(f"all {len(self.configurations)} configurations failed",
                               detail=_list(executor.failed), sqlstate="22000")
            self.journal_parameters = parameters
            return run_id, executor
        finally:
            journal.close()

    def _stop(self, journal, sessions, error):
        """End the run's sessions and say in its row why; the committed units stay."""
        stuck = sessions.abandon()
        try:
            journal.terminate(stuck)
            journal.close_run(self.run_id, *_outcome(error))
        except psycopg2.Error as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {self.run_id} could not be closed: {trouble}")

    def _keys(self, dataset):
        return [key for of, key in self.segments if of == dataset]

    def _options_of_place(self, place):
        return {**self.trainer_options, "gpu": place % self.gpus if self.gpus else None}

    def _lock_sources(self):
        """Keep the sources from changing, as far as the caller may; the fingerprints tell the rest."""
        db = self.db
        for packed in (self.source, self.validation):
            if packed is None:
                continue
            held = db.value(
                "SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND locktype = 'relation' "
                "AND mode = 'AccessExclusiveLock' AND (relation = $1 OR relation IN "
                "(SELECT relid FROM pg_partition_tree($1::oid::regclass)))", ["oid"], [packed.table.oid])
            visible_lock_hint = "COMMIT; then call again: worker sessions read what is committed and not locked."
            if held:
                raise MopError(f'"{packed.text}" is locked by this transaction itself',
                               detail="Created, altered or locked here, it cannot be read by the worker sessions.",
                               hint=visible_lock_hint, sqlstate="55006")
            if db.value("SELECT has_table_privilege($1, 'UPDATE, DELETE, TRUNCATE')", ["oid"], [packed.table.oid]) \
                    and packed.table.kind in ("r", "p"):
                before = db.setting("lock_timeout")
                db.execute(f"SET LOCAL lock_timeout = {self.options['lock_timeout']}")
                try:
                    db.execute(f"LOCK TABLE {packed.table} IN SHARE MODE")
                except db.plpy.SPIError as error:
                    if getattr(error, "sqlstate", None) != "55P03":
                        raise
                    raise _locked(packed) from None
                db.execute(f"SET LOCAL lock_timeout = {quote_literal(before)}")

    def _check_visible(self, journal):
        """Other sessions must see the sources' very rows."""
        for (dataset, key), segment in self.segments.items():
            packed = self._packed(dataset)
            try:
                seen = journal.fingerprint(self.engine.fingerprint_sql(packed, key))
            except psycopg2.errors.LockNotAvailable:
                raise _locked(packed) from None
            if seen != segment.fingerprint:
                raise MopError(
                    f'"{packed.text}" has rows that other sessions do not see'
                    if seen is not None else f'"{packed.text}" is not visible to other sessions',
                    detail="Worker sessions see committed data only, and no temporary tables.",
                    hint="COMMIT the transaction that made it (a temporary table: make it a permanent one).",
                    sqlstate="55000")

    def _packed(self, dataset):
        return self.source if dataset == "training" else self.validation

    def _describe(self, unit, place):
        """What a worker session needs to know of a unit (execute/unit.py)."""
        packed, segment = self._packed(unit.dataset), self.segments[unit.dataset, unit.segment]
        fit = next(c["fit"] for c in self.configurations if c["mst_key"] == unit.mst_key)
        aggregate = f"{self.db.extension}.mop_sub_epoch"
        return {
            "options": self._options_of_place(place), "seed": self.seed, "same_start": self.options["same_start"],
            "table": packed.text, "fingerprint": segment.fingerprint,
            "fingerprint_sql": self.engine.fingerprint_sql(packed, unit.segment),
            "rows_sql": self.engine.rows_sql(packed, unit.segment, aggregate),
            "dtypes": packed.dtypes(), "inputs": len(packed.inputs), "rows": segment.rows, "bytes": segment.bytes,
            "epochs": fit["epochs"] - fit["initial_epoch"] if unit.kind == "train" else 1,
            "dataset_key": self._dataset_key(unit.dataset, unit.segment),
            "keep": [self._dataset_key(*d) for d in self.segments], "object_table": self.functions,
        }

    def _dataset_key(self, dataset, key):
        """Names a segment's very rows, so that a warm trainer's cache serves the next call too."""
        return f"{self._packed(dataset).table.oid}/{key}/{self.segments[dataset, key].fingerprint}"

    def _tell(self, journal, iteration):
        """The INFO line of an iteration, with the metrics where it has any."""
        lines = [f"iteration {iteration} of {self.num_iterations}: trained in "
                 f"{journal.training_seconds(self.run_id, iteration):.3f} s"]
        if iteration in self.metrics_iterations:
            rows = journal.metrics(self.run_id, iteration)
            for dataset, title in (("training", "Training set"), ("validation", "Validation set")):
                here = [r for r in rows if r["dataset"] == dataset]
                if here:
                    lines.append(f"{title} (evaluated in {sum(r['took'] for r in here):.3f} s):")
                    lines += [f"  mst_key={r['mst_key']}: metric={r['metric']}, loss={r['loss']}" for r in here]
        self.db.info("\n".join(lines))

    # --- the output ---------------------------------------------------------------------------------
    def write(self, run_id, executor, started, name, description):
        """Write the three output tables in the caller's transaction and mark the run finished."""
        db = self.db
        model, info, summary = self.output
        if self.previous is not None:
            self.previous.drop()
        db.execute(f"CREATE TABLE {model} (mst_key integer, model_weights bytea, model_arch json, "
                   f"__dist_key__ integer)")
        db.execute(f"ALTER TABLE {model} ALTER COLUMN model_weights SET STORAGE EXTERNAL")
        db.execute(f"""CREATE TABLE {info} (mst_key integer PRIMARY KEY, model_id integer, compile_params text,
            fit_params text, model_type text, model_size float8, metrics_elapsed_time float8[], metrics_type text[],
            loss_type text, training_metrics_final float8, training_loss_final float8, training_metrics float8[],
            training_loss float8[], validation_metrics_final float8, validation_loss_final float8,
            validation_metrics float8[], validation_loss float8[], error text)""")
        for c in catalog.configurations(db, run_id):
            size = None
            if c["error"] is None:
                weights = state.weights_to_bytes(
                    state.unpack(catalog.state(db, run_id, c["mst_key"], c["version"]))["weights"])
                size = len(weights) / 1024
                db.execute(f"INSERT INTO {model} VALUES ($1, $2, $3::json, $4)",
                           ["integer", "bytea", "text", "integer"],
                           [c["mst_key"], weights, c["model_arch"], c["segment"]])
            self._write_info(info, c, size)
        self._write_summary(summary, started, name, description)
        failed = executor.failed
        with Catalog(db, self.journal_parameters) as journal:
            journal.close_run(run_id, "finished", _list(failed) or None,
                              db.value("SELECT $1::regclass::oid", ["text"], [model]))
        if failed:
            db.warning(f"{len(failed)} of {len(self.configurations)} configurations failed: mst_key "
                       f"{', '.join(map(str, sorted(failed)))}", detail=_list(failed),
                       hint=f"SELECT mst_key, error FROM {info} WHERE error IS NOT NULL;")

    def close(self, run_id, error):
        """The output could not be written: say so in the run's row. Its states stay."""
        try:
            with Catalog(self.db, self.journal_parameters) as journal:
                journal.close_run(run_id, *_outcome(error))
        except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
            self.db.plpy.log(f"pg_mop: run {run_id} could not be closed: {trouble}")

    def _write_info(self, info, c, size):
        parsed = next(p for p in self.configurations if p["mst_key"] == c["mst_key"])["compile"]
        mine = [m for m in self.metrics if m["mst_key"] == c["mst_key"]] if c["error"] is None else []
        columns = {"mst_key": ("integer", c["mst_key"]), "model_id": ("integer", c["model_id"]),
                   "compile_params": ("text", c["compile_params"]), "fit_params": ("text", c["fit_params"]),
                   "model_type": ("text", "madlib_keras"), "model_size": ("float8", size),
                   "metrics_type": ("text[]", parsed["metrics"] or None), "loss_type": ("text", parsed["loss"]),
                   "error": ("text", c["error"])}
        last = "training" if self.validation is None else "validation"
        for dataset in ("training", "validation"):
            rows = [m for m in mine if m["dataset"] == dataset]
            if not rows:
                continue
            # a metric that was not asked for is 0, as in MADlib
            metrics = [0.0 if m["metric"] is None else m["metric"] for m in rows]
            losses = [m["loss"] for m in rows]
            columns.update({f"{dataset}_metrics": ("float8[]", metrics), f"{dataset}_loss": ("float8[]", losses),
                            f"{dataset}_metrics_final": ("float8", metrics[-1]),
                            f"{dataset}_loss_final": ("float8", losses[-1])})
            if dataset == last:
                columns["metrics_elapsed_time"] = ("float8[]", [m["seconds"] for m in rows])
        self._insert(info, columns)

    def _write_summary(self, summary, started, name, description):
        db, source = self.db, self.source
        source_name, output_name, selection_name, validation_name = self.arguments
        class_columns = ", ".join(
            f"s.{quote_identifier(c + '_class_values')}" if c + "_class_values" in source.summary
            else f"NULL::text[] AS {quote_identifier(c + '_class_values')}" for c in source.outputs)
        values = [
            ("source_table", "text", source_name), ("validation_table", "text", validation_name),
            ("model", "text", output_name), ("model_info", "text", db.suffixed(output_name, "_info")),
            ("dependent_varname", "text[]", source.outputs), ("independent_varname", "text[]", source.inputs),
            ("model_arch_table", "text", self.arch_table_name),
            ("model_selection_table", "text", selection_name), ("object_table", "text", self.object_table),
            ("num_iterations", "integer", self.num_iterations),
            ("metrics_compute_frequency", "integer", self.frequency), ("warm_start", "boolean", self.warm_start),
            ("name", "text", name), ("description", "text", description),
            ("start_training_time", "timestamp", started),
            ("end_training_time", "timestamp", db.value("SELECT clock_timestamp()::timestamp::text")),
            ("madlib_version", "text", f"pg_mop {__version__}"),
            ("num_classes", "integer[]", [shape[0] for shape in self.shapes[len(source.inputs):]]),
        ]
        after = [("dependent_vartype", "text[]", source.summary.get("dependent_vartype")),
                 ("normalizing_const", "real", source.summary.get("normalizing_const")),
                 ("metrics_iters", "integer[]", self.metrics_iterations)]
        if source.regression:
            after.append(("dependent_dtype", "text", "float32"))
        # CREATE TABLE AS takes no parameters
        db.execute(f"CREATE TABLE {summary} AS SELECT {_typed(values)}, {class_columns}, {_typed(after)} "
                   f"FROM {source.summary_table} AS s LIMIT 1")

    def _insert(self, table, columns):
        names = ", ".join(quote_identifier(n) for n in columns)
        places = ", ".join(f"${i + 1}" for i in range(len(columns)))
        self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})",
                        [t for t, _ in columns.values()], [v for _, v in columns.values()])


class PreviousRun:
    """The output of the run that a warm start goes on from, and replaces."""

    def __init__(self, db, text):
        """Check the three tables that the caller calls `text`, `text`_info, `text`_summary. Raises MopError."""
        self.db, self.text = db, text
        if text is None or text.strip().lower() in ("", "null"):
            raise MopError("NULL/empty output table name")
        hint = "A warm start goes on from the tables of an earlier call: call with warm_start => FALSE first."
        self.tables = [db.input_table(text if not suffix else db.suffixed(text, suffix), what, hint=hint)
                       for suffix, what in (("", "model table"), ("_info", "info table of the model table"),
                                            ("_summary", "summary of the model table"))]
        self.names = [str(table) for table in self.tables]
        columns = (("mst_key", "model_weights", "model_arch"), ("mst_key", "model_id"), ())
        for table, wanted in zip(self.tables, columns):
            missing = [c for c in wanted if c not in db.columns(table)]
            if missing:
                raise MopError(f'{table} has no column "{missing[0]}": it was not made by '
                               f"madlib_keras_fit_multiple_model")
            if not db.value("SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = $1", ["oid"], [table.oid]):
                raise MopError(f"must be owner of {table}, which a warm start replaces", sqlstate="42501")
            if dependent := db.value(
                    "SELECT pg_describe_object(classid, objid, 0) FROM pg_depend WHERE refclassid = 1259 AND "
                    "refobjid = $1 AND deptype = 'n' AND classid IN (2618, 2606) LIMIT 1", ["oid"], [table.oid]):
                raise MopError(f"{table}, which a warm start replaces, is used by another object", detail=dependent,
                               hint="Drop that, or make it of a copy of the table.", sqlstate="2BP01")
        self.rows = {row["mst_key"]: row for row in db.execute(
            f"SELECT m.mst_key, i.model_id, m.model_arch::text AS model_arch, md5(m.model_weights) AS weights_md5 "
            f"FROM {self.tables[0]} m LEFT JOIN {self.tables[1]} i USING (mst_key)")}

    def fill(self, c):
        """Put the weights and architecture of the earlier run into configuration `c`; what forbids it, or None.

        A configuration that is new starts from the seed, whatever the architecture table has.
        """
        before = self.rows.get(c["mst_key"])
        if before is None or before["weights_md5"] is None:
            return None
        if before["model_id"] not in (None, c["model_id"]):
            return (f'it is of model_id {c["model_id"]}, but of {before["model_id"]} in "{self.text}": '
                    f"a warm start goes on with the same architecture")
        c["model_arch"], c["weights_md5"] = before["model_arch"], before["weights_md5"]
        c["weights_sql"] = f"SELECT model_weights FROM {self.tables[0]} WHERE mst_key = {int(c['mst_key'])}"
        return None

    def drop(self):
        """Make room for the new tables."""
        for table in self.tables:
            self.db.execute(f"DROP TABLE {table}")


def _typed(columns):
    """(name, type, value) triples as a select list of literals."""
    parts = []
    for name, kind, value in columns:
        if isinstance(value, list):
            literal = "ARRAY[" + ", ".join(quote_literal(v) for v in value) + "]"
        else:
            literal = quote_literal(value)
        parts.append(f"{literal}::{kind} AS {quote_identifier(name)}")
    return ", ".join(parts)


def _locked(packed):
    """The MopError for a source that could not be locked or read in time."""
    return MopError(f'"{packed.text}" is locked by another transaction', sqlstate="55P03",
                    hint=f"SELECT pid, mode FROM pg_locks WHERE relation = {quote_literal(packed.table)}::regclass;")


def _one(values):
    """A list as it is, or its only element."""
    return values[0] if len(values) == 1 else values


def _outcome(error):
    """(status, error text) of a run that an exception ended."""
    return "cancelled" if type(error).__name__ == "QueryCanceled" else "failed", str(error).strip()


def _list(failed):
    """{mst_key: message} as lines of text."""
    return "\n".join(f"mst_key {key}: {failed[key]}" for key in sorted(failed))
