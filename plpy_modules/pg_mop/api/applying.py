"""Applying a trained model on all segments at once: a run that trains nothing and leaves nothing.

Its plan is one stage that has been trained already, to which the model's weights are put; its units evaluate that, or
predict with it, on the servers that hold the rows. So sessions, trainers and servers are lost and replaced as in any
run, and everybody sees it in mop_runs while it goes on.
"""

import collections
import functools

import psycopg2

from pg_mop.api.training import Training
from pg_mop.backend.database import MopError
from pg_mop.engines.postgresql import PostgreSQL
from pg_mop.inference.parts import why_alone
from pg_mop.run.sessions import are_warm
from pg_mop.run.unit_specs import UnitSpecs

WORTH_BYTES = 128 << 20  # of rows; with fewer, to start several trainers takes longer than they save
NOTHING = "optimizer='SGD()', loss='mse'"  # what a stage's parameters must say, where nothing is trained or measured


class Applying(Training):
    """One call: `on_segments`, then `done`."""

    # what is measured is told, whatever it is (Python 3.14 binds a partial to the object that has it: static)
    unit_specs_class = staticmethod(functools.partial(UnitSpecs, finite=False))

    compares = False  # the rows that worker sessions see on this server with those that the caller sees
    copied = False
    gathering = False  # what the run has found out is being written

    def __init__(self, db, table, function, model, use_gpus, compile_params=NOTHING, functions=None):
        """`table`: a PackedTable or a RawTable; `model`: an :class:`~pg_mop.inference.model.Model`; `functions`: object
        table of its custom ones (quoted), or None. `first`: the `shape_columns` of any row, or None."""
        super().__init__(db, function, table, None, 1, 1, use_gpus)
        self.options.update(resume=False, reuse=False)
        self.first = self.engine.first_row(table, table.shape_columns())
        self.check(
            [
                {
                    "mst_key": 1,
                    "model_id": 0,
                    "compile_params": compile_params,
                    "fit_params": "",
                    "model_arch": model.architecture_text,
                    "weights_sql": model.weights_sql,
                    "weights_md5": db.value(f"SELECT md5(w) FROM ({model.weights_sql}) AS model(w)"),
                }
            ],
            functions,
        )

    @classmethod
    def on_segments(cls, db, table, *arguments):
        """The call for a table, or None: where it is not worth its while, or cannot be made, of which the caller is
        told. `arguments`: the constructor's."""
        checked = cls.compares and not table.foreign
        if not db.has_segments and (
            why_alone(db, table.table, table.columns, checked) or not (table.foreign or _is_worthwhile(db, table.table))
        ):
            return None
        try:
            return cls(db, table, *arguments)
        except (MopError, psycopg2.Error, db.plpy.SPIError) as error:
            tell_alone(db, error)
            return None

    def done(self, output, output_name):
        """Do it; `output`: the output table, quoted, as the caller calls it `output_name`. False where it could not be
        done, of which the caller is told: his own session may do it, or says better what is in the way."""
        try:
            self.reserve(output)
            self.run(output_name, {}, {})
        except (MopError, psycopg2.Error, self.db.plpy.SPIError) as error:
            if self.gathering:
                raise
            tell_alone(self.db, error)
            return False
        self.catalog.close_run(self.run_id, "finished")
        self._drop()
        self.catalog.close()
        return True

    def _keep_writers_out(self):
        """Nobody is kept out: who finds that others have written leaves it to the caller's own session."""

    def _make_plan(self, earlier):
        super()._make_plan(earlier)
        at = collections.Counter(segment.at(self.servers).server for segment in self.segments.values())
        self.wanted = min(
            self.wanted,
            sum(
                min(count, max(self.servers[name].info["cores"], self.servers[name].info["gpus"]))
                for name, count in at.items()
            ),
        )

    def packed_table(self, table, what):
        return table

    def _shape(self):
        return ""  # nothing is kept of what it costs

    def expected_seconds(self):
        return None

    def all_failed(self):
        return self.failed[1].partition(": ")[2]

    def tell(self, *_):
        """Of the one iteration there is nothing to tell."""

    def adopt(self, stages):
        return []

    def _start_paths(self, catalog):
        super()._start_paths(catalog)
        for stage in self.plan.stages.values():
            stage.trained = True

    def _stop(self, catalog, sessions, error):
        super()._stop(catalog, sessions, error)
        self._drop()

    def _close_remote_run(self, server, outcome):
        super()._close_remote_run(server, outcome)
        server.catalog.drop_run(server.run_id)

    def _drop(self):
        try:
            self.catalog.drop_run(self.run_id)
        except (MopError, psycopg2.Error) as trouble:  # the next call that trains drops it
            self.db.plpy.log(f"pg_mop: run {self.run_id} is left behind: {trouble}")


def _is_worthwhile(db, table):
    """True where several sessions take less time than the caller's own to go through a Table on this server."""
    return are_warm(db.current_user()) or db.value(
        "SELECT sum(pg_total_relation_size(relid)) >= $2 FROM pg_partition_tree($1::oid::regclass)",
        ["oid", "bigint"],
        [table.oid, WORTH_BYTES],
    )


def first_row(db, table, applying):
    """The `shape_columns` of any row of a PackedTable or a RawTable, as the call knows it or, where there is none, as
    the caller's own session reads it; None where there is no row."""
    return PostgreSQL(db).first_row(table, table.shape_columns()) if applying is None else applying.first


def tell_alone(db, error):
    """Tell the caller why his own session works alone. Raises a cancel."""
    if getattr(error, "sqlstate", None) == "57014":  # a cancel, in PostgreSQL's own words
        raise error
    db.notice(f"this session works alone, not on all segments at once: {str(error).strip()}")
