"""The tables and views that the steps of mop_train create: their names, their comments and their removal.

A later call recognizes leftovers by the comment.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pg_mop.api.tables import drawn_rows, refit
from pg_mop.backend import weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal, written

REMARK = "a step of mop_train: its end, or the next call, drops it"  # the comment of the relations
PACKED = ("packed", "checked", "tested", "all", "whole")  # the packed tables of the steps
OF_SEARCH = ("", "_info", "_summary", "_trials")  # the ends of the names of a search's tables


class StepRelations:
    """The relations of a call that trains `model`. `names`: of each part of the steps, with their schema."""

    def __init__(self, db: Database, model: str, prefix: str) -> None:
        """`prefix`: of the names."""
        self._db, self._model = db, model
        # with the schema: a temporary relation of the caller may have the name of one of ours
        self.prefix = self._qualified(prefix)
        self.names = n = {
            part: db.suffixed(self.prefix, f"_{part}")
            for part in ("rows", "train", "valid", "test", *PACKED, "nets", "search")
        }
        for part in drawn_rows.PARTS:  # steps read the part, or the rows that are drawn of it
            n[f"{part}_view"], n[f"{part}_drawn"] = n[part], db.suffixed(self.prefix, f"_{part}_drawn")
        self._all = self._listed()

    def _qualified(self, name: str) -> str:
        """A name with the schema in which the caller creates relations of that name."""
        schema, last = self._db.parse_name(name)
        if schema is None:
            with self._db.caller_path():
                schema = self._db.value("SELECT pg_catalog.current_schema()")
        return ".".join(written(part) for part in (schema, last) if part is not None)

    def reserve(self) -> None:
        """Reserve the names of the relations until the end of the transaction. Raises MopError."""
        schema, name = self._db.parse_name(self.prefix)
        reserved = self._db.value(
            f"SELECT {self._db.extension}.mop_reserve($1, $2::name)", ["text", "text"], [schema, name]
        )
        if not reserved:
            pid = self._db.value(
                f"SELECT {self._db.extension}.mop_reserved_by($1, $2::name)", ["text", "text"], [schema, name]
            )
            raise MopError(
                f'another session is training model "{self._model}" now',
                detail=f"It is that of process {pid}." if pid is not None else None,
                hint=f"SELECT pg_cancel_backend({pid}); ends its call." if pid is not None else "Call again.",
                sqlstate="55006",
            )

    def _listed(self) -> list[tuple[str, str]]:
        """(kind, name) of all relations of the steps, in an order in which they can be dropped."""
        n, suffixed = self.names, self._db.suffixed
        return [
            *(("VIEW", n[f"{part}_view"]) for part in drawn_rows.PARTS),
            *(("TABLE", name) for name in (n["rows"], *(n[f"{part}_drawn"] for part in drawn_rows.PARTS))),
            *(("TABLE", suffixed(n[part], end)) for part in PACKED for end in ("", "_summary")),
            *(("TABLE", suffixed(n["nets"], end)) for end in ("", weights.SUFFIX)),
            *(("TABLE", suffixed(n["search"], end)) for end in (*OF_SEARCH, weights.SUFFIX)),
            *(("TABLE", name) for part in ("all", "whole") for name in refit.relations(self._db, n[part])),
        ]

    @property
    def kept(self) -> str:
        """How the comment of a relation that is kept begins."""
        return f"of mop_train for model {self._model} (keep => true)"

    def begin(self) -> None:
        """Raises MopError where a relation has one of the names."""
        for _, name in self._all:
            self._db.output_table(name)

    def marking(self, made: Sequence[str]) -> str:
        """SQL: the comment of those of the tables that exist."""
        tables = ", ".join(f"pg_catalog.to_regclass({quote_literal(ref(self._db, name))})" for name in made)
        return " " + _block(_MARKING.format(tables=tables, remark=quote_literal(REMARK)))

    def dropping(self, remark: str = REMARK) -> str:
        """SQL that drops the relations whose comments are ours: this call has made them, or an earlier call has left them; or
        those whose comments begin with `remark`."""
        # the summary of a packed table has our comment, not the table itself
        marked = {self.names[part]: self._db.suffixed(self.names[part], "_summary") for part in PACKED}
        rows = ", ".join(
            f"('{kind}', {quote_literal(ref(self._db, name))}, {quote_literal(ref(self._db, marked.get(name, name)))})"
            for kind, name in self._all
        )
        return _block(_DROPPING.format(rows=rows, ours=quote_literal(REMARK), remark=quote_literal(remark)))

    def end(self, keep: bool) -> None:
        """Drop the relations in the caller's transaction. With `keep`, give them comments instead."""
        if not keep:
            self._db.execute(self.dropping())
            return
        for kind, name in self._all:
            table = self._db.find_table(name)
            if table and self._db.value("SELECT obj_description($1, 'pg_class')", ["oid"], [table.oid]) == REMARK:
                said = f"{self.kept}; to remove it: DROP {kind} {table};"
                self._db.execute(f"COMMENT ON {kind} {table} IS {quote_literal(said)}")


def ref(db: Database, name: str) -> str:
    """SQL for a relation by its name, as the caller writes it."""
    schema, last = db.parse_name(name)
    return ".".join(quote_identifier(part) for part in (schema, last) if part is not None)


def _block(body: str) -> str:
    tag = f"$mop_{secrets.token_hex(4)}$"
    return f"DO {tag}{body}{tag};"


_DROPPING = """
DECLARE
    part record;
    said text;
BEGIN
    FOR part IN SELECT * FROM (VALUES {rows}) AS v(kind, name, told) LOOP
        said := pg_catalog.obj_description(pg_catalog.to_regclass(part.told), 'pg_class');
        IF said OPERATOR(pg_catalog.=) {ours}
            OR pg_catalog.left(said, pg_catalog.length({remark})) OPERATOR(pg_catalog.=) {remark}
        THEN
            EXECUTE pg_catalog.format('DROP %s IF EXISTS %s', part.kind, part.name);
        END IF;
    END LOOP;
END"""
_MARKING = """
DECLARE
    made regclass;
BEGIN
    FOREACH made IN ARRAY ARRAY[{tables}] LOOP
        IF made IS NOT NULL THEN
            EXECUTE pg_catalog.format('COMMENT ON TABLE %s IS %L', made, {remark});
        END IF;
    END LOOP;
END"""
