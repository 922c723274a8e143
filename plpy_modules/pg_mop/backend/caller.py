"""The caller's session: queries in its transaction, interrupts, messages, and a pinned search_path."""

from __future__ import annotations

import ctypes
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mop_udf.errors import as_before_9_5, sendable
from pg_mop.backend import acting
from pg_mop.backend.errors import MopError
from pg_mop.backend.explaining import Explaining
from pg_mop.backend.quoting import quote_identifier

# Settings that the caller may have changed, with the values that our SQL needs.
PINNED = {
    "extra_float_digits": "3",  # numbers, dates and bytes survive their conversion to text and back
    "bytea_output": "hex",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "quote_all_identifiers": "off",  # types are compared by name
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
}

CHECK_SECONDS = 0.1  # between two checks of `hear_interrupts`

_known_functions: dict[tuple[str, str], bool] = {}  # (function, argument types): this server has it
_lacking_settings: dict[tuple[str, ...], set[str]] = {}  # names of settings: those that this server lacks


def _changed(settings: Mapping[str, str]) -> dict[str, str]:
    """The entries of PINNED that the caller's `settings` do not have."""
    return {name: value for name, value in PINNED.items() if settings[name] != value}


class CallerSession:
    """Queries in the caller's transaction, with search_path pinned to pg_catalog.

    Values are passed as parameters; `execute` returns a list of dicts.
    """

    def __init__(self, plpy: Any, extension_schema: str) -> None:
        self.plpy = plpy
        self.schema = extension_schema  # not quoted
        self.extension = quote_identifier(extension_schema)
        self._caller_path: str | None = None
        self._before: Mapping[str, str] | None = None  # the caller's own values of the pinned settings
        self._pinned = False
        self.commits = False  # a procedure, which commits whenever it waits
        self.while_waiting: list[Callable[[], None]] = []  # called whenever a procedure waits
        self.at_end: list[Callable[[], None]] = []  # called after the call and its last transaction
        self.explaining: Explaining | None = None  # the call is explained: it is checked and planned, and does not run
        self._heard = 0.0  # when `hear_interrupts` has last checked
        self.on_nodes = False  # Citus may have extended the transaction to other nodes

    # --- waiting -------------------------------------------------------------------------------
    def check_interrupts(self) -> None:
        """Let PostgreSQL process interrupts: a cancel is raised from this call. A procedure commits."""
        self._let_interrupt()
        if self.commits:
            for work in self.while_waiting:
                work()
            self.commit()

    def hear_interrupts(self) -> None:
        """The same for loops that compute: it may be called for each small step, and commits nothing."""
        if time.monotonic() - self._heard >= CHECK_SECONDS:
            self._let_interrupt()
            self._heard = time.monotonic()

    def _let_interrupt(self) -> None:
        self.check_cancel()
        # PL/Python sets a savepoint for each query, on Greenplum on all segments. The error of a lost segment would
        # pass Python's frames, so Greenplum runs a query only if an interrupt is pending.
        if not self.has_segments or any(
            ctypes.c_bool.in_dll(ctypes.CDLL(None), name).value for name in ("QueryCancelPending", "ProcDiePending")
        ):
            self.plpy.execute("SELECT 1")

    def check_cancel(self) -> None:
        """Raise a pending cancel. Call this before using plpy without `execute`.

        PL/Python sets a savepoint for each query, and Citus sets it on its nodes, too. A cancel raised there unwinds
        Python's frames without running them: no file is closed, no `finally` runs.
        """
        if self.on_nodes and ctypes.c_int.in_dll(ctypes.CDLL(None), "QueryCancelPending").value:
            self.log("a cancel is heard")  # PostgreSQL checks for cancels at each message

    def commit(self) -> None:
        """Commit, and begin a transaction that has no snapshot until its first query."""
        self.plpy.commit()
        self._pinned = False

    # --- queries -------------------------------------------------------------------------------
    def execute(self, sql: str, types: Sequence[str] = (), values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Run `sql` (with parameters $1, ... of `types`) and return the rows as dicts."""
        self.check_cancel()
        if self._before is not None and not self._pinned:
            self._pin(self._before)
        result = (
            self.plpy.execute(self.plpy.prepare(sql, list(types)), list(values)) if types else self.plpy.execute(sql)
        )
        # A statement without a result set has no column description.
        return [dict(row) for row in result] if result.nrows() and len(result) else []

    def one(self, sql: str, types: Sequence[str] = (), values: Sequence[Any] = ()) -> dict[str, Any] | None:
        """The first row as a dict, or None."""
        rows = self.execute(sql, types, values)
        return rows[0] if rows else None

    def value(self, sql: str, types: Sequence[str] = (), values: Sequence[Any] = ()) -> Any:
        """The first column of the first row, or None."""
        row = self.one(sql, types, values)
        return next(iter(row.values())) if row else None

    def setting(self, name: str) -> str | None:
        """A PostgreSQL setting as text; None if unset or empty."""
        if self.has("current_setting", "text, bool"):
            return self.value("SELECT pg_catalog.current_setting($1, true)", ["text"], [name]) or None
        try:
            return self.value("SELECT pg_catalog.current_setting($1)", ["text"], [name]) or None
        except self.plpy.SPIError as error:
            if error.sqlstate != "42704":
                raise
            return None

    def check_sql(self, sql: str) -> None:
        """Raise PostgreSQL's own error if `sql` cannot be prepared. No lock remains.

        Of several statements, only the syntax is checked: the first may create objects for the second.
        """
        try:
            with self.undone(), self.caller_path():
                self.plpy.prepare(sql)
        except self.plpy.SPIError as error:
            if ";" not in sql.strip().rstrip(";") or getattr(error, "sqlstate", None) == "42601":
                raise

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Roll the block's changes back at its end, which also releases its locks. Exceptions pass."""
        with acting.undone(self.plpy):
            yield

    def note_act(self, act: str, details: Mapping[str, Any]) -> None:
        """Note an act of the caller in the audit log (sql/13_audit.sql), unless the transaction can write nothing."""
        if self.setting("transaction_read_only") != "on":
            self.execute(
                f"SELECT {self.extension}.mop_note_act($1, $2::json)",
                ["text", "text"],
                [act, json.dumps(dict(details))],
            )

    # --- differences between servers -----------------------------------------------------------
    def has(self, function: str, types: str) -> bool:
        """True if pg_catalog has this function with these argument types ('text, bool').

        Greenplum 6 has the functions of PostgreSQL 9.4.
        """
        if (function, types) not in _known_functions:
            _known_functions[function, types] = self.value(  # must work in any search_path
                "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p WHERE p.proname OPERATOR(pg_catalog.=) "
                "$1::pg_catalog.name AND p.pronamespace OPERATOR(pg_catalog.=) 11::pg_catalog.oid "
                "AND (SELECT pg_catalog.string_agg(t.typname::pg_catalog.text, ', ' ORDER BY a.place) FROM "
                "pg_catalog.unnest(p.proargtypes::pg_catalog.oid[]) WITH ORDINALITY AS a(type, place) JOIN "
                "pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.type) OPERATOR(pg_catalog.=) $2)",
                ["pg_catalog.text", "pg_catalog.text"],
                [function, types],
            )
        return _known_functions[function, types]

    def lacking_settings(self, names: tuple[str, ...]) -> set[str]:
        """The settings in `names` that the server does not know."""
        if names not in _lacking_settings:
            rows = self.execute(
                "SELECT s.name FROM pg_catalog.pg_settings s WHERE s.name OPERATOR(pg_catalog.=) ANY ($1)",
                ["pg_catalog.text[]"],
                [list(names)],
            )
            _lacking_settings[names] = set(names) - {row["name"] for row in rows}
        return _lacking_settings[names]

    def relation(self, quoted: str) -> Any:
        """The OID of the relation with a quoted name, or None."""
        name = "$1" if self.has("to_regclass", "text") else "pg_catalog.textout($1)"  # a cstring on old servers
        return self.value(f"SELECT pg_catalog.to_regclass({name})::pg_catalog.oid", ["pg_catalog.text"], [quoted])

    @functools.cached_property
    def has_segments(self) -> bool:
        """True on the coordinator of a Greenplum cluster, whose segments hold the rows."""
        return self.relation("pg_catalog.gp_distribution_policy") is not None

    @functools.cached_property
    def has_citus(self) -> bool:
        """True if this database has the extension Citus."""
        return self.relation("pg_catalog.pg_dist_partition") is not None

    def check_engine(self, what: str) -> None:
        """Raises MopError on Greenplum. `what`: the name of a feature that does not work there yet."""
        if self.has_segments:
            raise MopError(
                f"{what} is not supported on Greenplum yet", sqlstate="0A000", hint="Call it on a PostgreSQL server."
            )

    # --- roles and messages --------------------------------------------------------------------
    def current_user(self) -> str:
        """The name of the current role."""
        return self.value("SELECT current_user::text")

    def is_superuser(self) -> bool:
        """True if the current role is a superuser."""
        return self.value("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")

    def log(self, message: str) -> None:
        """Write a message to the server's log."""
        self.plpy.log(sendable(f"pg_mop: {message}"))

    def info(self, message: str) -> None:
        """Send an INFO message to the client."""
        self.plpy.info(sendable(message))

    def notice(self, message: str, detail: str | None = None, hint: str | None = None) -> None:
        """Send a NOTICE to the client."""
        self._report(self.plpy.notice, message, detail, hint)

    def warning(self, message: str, detail: str | None = None, hint: str | None = None) -> None:
        """Send a WARNING to the client."""
        self._report(self.plpy.warning, message, detail, hint)

    def _report(self, level: Callable[..., None], message: str, detail: str | None, hint: str | None) -> None:
        message, detail, hint = sendable(message), detail and sendable(detail), hint and sendable(hint)
        try:
            level(message, **{name: text for name, text in (("detail", detail), ("hint", hint)) if text})
        except TypeError:  # before PostgreSQL 9.6 a message is one text
            hint = as_before_9_5(hint)
            parts: Iterable[str | None] = (message, detail and f"DETAIL: {detail}", hint and f"HINT: {hint}")
            level("\n".join(part for part in parts if part))

    # --- pinned settings -----------------------------------------------------------------------
    @contextmanager
    def pinned_path(self) -> Iterator[CallerSession]:
        """Pin search_path and the settings in PINNED until the block ends. PostgreSQL restores them after an error."""
        self._before = before = self.plpy.execute(
            "SELECT "
            + ", ".join(f"pg_catalog.current_setting('{name}') AS {name}" for name in ("search_path", *PINNED))
        )[0]
        self._caller_path = before["search_path"]
        self._pin(before)
        try:
            yield self
        finally:
            self._before = None
        self._set_path(before["search_path"])
        self._set_local({name: before[name] for name in _changed(before)})

    def _pin(self, before: Mapping[str, str]) -> None:
        self._pinned = True
        self._set_path("pg_catalog, pg_temp")
        self._set_local(_changed(before))

    @contextmanager
    def local_settings(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Give settings of PostgreSQL other values until the block ends."""
        before = {name: self.value("SELECT pg_catalog.current_setting($1)", ["text"], [name]) for name in settings}
        self._set_local(settings)
        try:
            yield
        finally:
            self._set_local(before)

    def _set_local(self, settings: Mapping[str, str]) -> None:
        """Set the pinned settings. Greenplum sends each one to all segments: set only those that differ."""
        if not settings:
            return
        plan = self.plpy.prepare(
            "SELECT " + ", ".join(f"pg_catalog.set_config('{name}', ${i}, true)" for i, name in enumerate(settings, 1)),
            ["pg_catalog.text"] * len(settings),
        )
        self.plpy.execute(plan, list(settings.values()))

    def _set_path(self, path: str | None) -> None:
        plan = self.plpy.prepare("SELECT pg_catalog.set_config('search_path', $1, true)", ["pg_catalog.text"])
        self.plpy.execute(plan, [path])

    @contextmanager
    def caller_path(self) -> Iterator[None]:
        """Use the caller's own search_path within the block, to look names up as the caller does."""
        self._set_path(self._caller_path)
        try:
            yield
        finally:
            self._set_path("pg_catalog, pg_temp")

    @property
    def callers_path(self) -> str | None:
        """The caller's search_path, as text."""
        return self._caller_path

    def look_up_as(self, path: str | None) -> None:
        """Look names up by another search_path from now on; None keeps the present one."""
        self._caller_path = path or self._caller_path


def extension_schema(plpy: Any) -> str:
    """The schema of the extension pg_mop, not quoted."""
    return plpy.execute(
        "SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n "
        "ON n.oid OPERATOR(pg_catalog.=) e.extnamespace "
        "WHERE e.extname OPERATOR(pg_catalog.=) 'pg_mop'"
    )[0]["nspname"]
