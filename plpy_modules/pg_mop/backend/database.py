"""The caller's backend as ordinary Python: names, queries, errors and the pinned search_path.

Every SQL function of the extension enters Python through :func:`sql_function`, which gives the API a
:class:`Database` instead of ``plpy``.
"""

import ctypes
import functools
import inspect
import json
import math
import re
from contextlib import contextmanager

from mop_udf.errors import raise_error

# of every session that a call opens: what its role or database has set must not change what our SQL means and gives
SESSION_OPTIONS = (
    "-c search_path=pg_catalog,pg_temp -c client_min_messages=error -c client_encoding=UTF8 "
    "-c extra_float_digits=3 -c row_security=on -c default_transaction_isolation=read\\ committed "
    "-c default_transaction_read_only=off -c idle_in_transaction_session_timeout=0 "
    "-c idle_session_timeout=0 -c transaction_timeout=0"
)
# a server must learn that the machine of who led a call has gone
KEEPALIVES = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
MAX_NAME = 63  # bytes of an identifier


def options_without(lacks, text):
    """libpq's options (-c name=value ...) without those settings."""
    return re.sub(r"-c (\w+)=\S+ ?", lambda c: "" if c[1] in lacks else c[0], text)


def first_sql(target):
    """SQL, with a semicolon, that a session begins with: its role, always, for the login may have set another; and what
    of SESSION_OPTIONS cannot be asked of another server, which may not know it."""
    asked = (
        "SELECT pg_catalog.set_config(s.name, '0', false) FROM pg_catalog.pg_settings s "
        "WHERE s.name OPERATOR(pg_catalog.=) 'transaction_timeout'; "
    )
    return f"{'' if target.server is None else asked}SET ROLE {quote_identifier(target.role)}; "


class MopError(Exception):
    """An error for the caller: one sentence, with the facts in `detail` and the mending command in `hint`."""

    silent = None  # the way to a server that did not answer, or is only beginning or ending to

    def __init__(self, message, detail=None, hint=None, sqlstate="22023"):
        super().__init__(message)
        self.message, self.detail, self.hint, self.sqlstate = message, detail, hint, sqlstate


def has_lost_segment(error):
    """True where an error of psycopg2's is that of a session whose segment of Greenplum has gone.

    Such a session is not to be used again: the error may break out of PL/Python while it rolls back, which
    leaves the Python of that process in ruins (its next call ended the coordinator, and so all sessions).
    """
    return (
        error.pgcode == "58M01" or error.pgcode == "XX000" and bool(re.search(r"DTX \w+ dispatch failed", str(error)))
    )


def quote_identifier(name):
    """`name` as a double-quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value):
    """`value` as an SQL literal; None is NULL."""
    if value is None:
        return "NULL"
    text = str(value).replace("'", "''")
    return "E'" + text.replace("\\", "\\\\") + "'" if "\\" in text else "'" + text + "'"


def finite_json(values):
    """{name: number or None} as JSON text, which has no NaN and no infinity: null."""
    return json.dumps(
        {name: None if value is None or not math.isfinite(value) else value for name, value in values.items()}
    )


def split_names(text):
    """A comma list of column names -> list; commas inside double quotes do not split, quoting is undone.

    Unquoted names keep their case, as the names of existing columns are looked up both ways.
    """
    parts = re.findall(r'\s*((?:"(?:[^"]|"")*"|[^,"])*)(?:,|$)', text or "")
    names = []
    for part in parts[: (text or "").count(",") + 1]:
        part = part.strip()
        if part.startswith('"') and part.endswith('"') and len(part) > 1:
            part = part[1:-1].replace('""', '"')
        if part:
            names.append(part)
    return names


class Table:
    """A relation that exists: its oid, schema and name, and its quoted form for SQL."""

    def __init__(self, oid, schema, name, kind):
        self.oid, self.schema, self.name, self.kind = oid, schema, name, kind
        self.sql = f"{quote_identifier(schema)}.{quote_identifier(name)}"

    def __str__(self):
        return self.sql


# what a caller may have set otherwise, and our SQL needs so
PINNED = {
    "extra_float_digits": "3",  # numbers, dates and bytes that pass as text come back as they were
    "bytea_output": "hex",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "quote_all_identifiers": "off",  # types are told by name
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
}


def _other(settings):
    """What is to be pinned of a caller's `settings`: those of PINNED that they have otherwise."""
    return {name: value for name, value in PINNED.items() if settings[name] != value}


_HAS = {}  # (function, types): whether this server has it; names of settings: those that it does not know


class Database:
    """Queries in the caller's transaction, with search_path pinned to pg_catalog while we run.

    Values are passed as parameters; `execute` returns a list of dicts.
    """

    def __init__(self, plpy, extension_schema):
        self.plpy = plpy
        self.schema = extension_schema  # not quoted
        self.extension = quote_identifier(extension_schema)
        self._caller_path = None
        self._before = None  # the caller's own values of what is pinned; None where nothing is pinned
        self._pinned = False
        self.commits = False  # this is a procedure, whose transaction ends at every tick
        self.while_waiting = []  # what is to be called at every tick of a procedure
        self.at_end = []  # what is to be called once the call and its last transaction are over
        self.on_nodes = False  # the transaction may be one of Citus, on other nodes, too

    # --- waiting -------------------------------------------------------------------------------
    def check_interrupts(self):
        """Let PostgreSQL see interrupts: a cancel is raised from here. A procedure holds nothing while it waits."""
        self.check_cancel()
        # (a query's savepoint is made on Greenplum's segments, too: the error of one that is lost would go past Python)
        if not self.has_segments or any(
            ctypes.c_bool.in_dll(ctypes.CDLL(None), name).value for name in ("QueryCancelPending", "ProcDiePending")
        ):
            self.plpy.execute("SELECT 1")
        if self.commits:
            for work in self.while_waiting:
                work()
            self.commit()

    def check_cancel(self):
        """Raise a cancel that has come: what uses plpy without `execute` calls this before.

        PL/Python begins each query with a savepoint, which Citus makes on its nodes. A cancel that is raised there goes
        through Python's frames as if there were none: nothing is closed, and nobody is told.
        """
        if self.on_nodes and ctypes.c_int.in_dll(ctypes.CDLL(None), "QueryCancelPending").value:
            self.plpy.log("pg_mop: a cancel is heard")  # with each message PostgreSQL looks for cancels

    def commit(self):
        """End this transaction and begin another, which has no snapshot until something is asked of it."""
        self.plpy.commit()
        self._pinned = False

    # --- queries -------------------------------------------------------------------------------
    def execute(self, sql, types=(), values=()):
        """Run `sql` ($1.. typed by `types`); returns the rows as dicts."""
        self.check_cancel()
        if self._before is not None and not self._pinned:
            self._pin()
        result = (
            self.plpy.execute(self.plpy.prepare(sql, list(types)), list(values)) if types else self.plpy.execute(sql)
        )
        # a statement without a result set has no column description to read
        return [dict(row) for row in result] if result.nrows() and len(result) else []

    def one(self, sql, types=(), values=()):
        """The first row as a dict, or None."""
        rows = self.execute(sql, types, values)
        return rows[0] if rows else None

    def value(self, sql, types=(), values=()):
        """The first column of the first row, or None."""
        row = self.one(sql, types, values)
        return next(iter(row.values())) if row else None

    def setting(self, name):
        """A PostgreSQL setting as text; None when unset or empty."""
        if self.has("current_setting", "text, bool"):
            return self.value("SELECT pg_catalog.current_setting($1, true)", ["text"], [name]) or None
        try:
            return self.value("SELECT pg_catalog.current_setting($1)", ["text"], [name]) or None
        except self.plpy.SPIError as error:
            if error.sqlstate != "42704":
                raise
            return None

    # --- what servers differ in ----------------------------------------------------------------
    def has(self, function, types):
        """True where the server has this function, of these types ('text, bool'), in pg_catalog. Greenplum 6 has
        those of PostgreSQL 9.4."""
        if (function, types) not in _HAS:
            _HAS[function, types] = self.value(  # (in any search_path)
                "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p WHERE p.proname OPERATOR(pg_catalog.=) "
                "$1::pg_catalog.name AND p.pronamespace OPERATOR(pg_catalog.=) 11::pg_catalog.oid "
                "AND (SELECT pg_catalog.string_agg(t.typname::pg_catalog.text, ', ' ORDER BY a.place) FROM "
                "pg_catalog.unnest(p.proargtypes::pg_catalog.oid[]) WITH ORDINALITY AS a(type, place) JOIN "
                "pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.type) OPERATOR(pg_catalog.=) $2)",
                ["pg_catalog.text", "pg_catalog.text"],
                [function, types],
            )
        return _HAS[function, types]

    def lacking_settings(self, names):
        """Those of some settings that the server does not know."""
        if names not in _HAS:
            known = self.execute(
                "SELECT s.name FROM pg_catalog.pg_settings s WHERE s.name OPERATOR(pg_catalog.=) ANY ($1)",
                ["pg_catalog.text[]"],
                [list(names)],
            )
            _HAS[names] = set(names) - {row["name"] for row in known}
        return _HAS[names]

    def relation(self, quoted):
        """The oid of the relation that a quoted name means, None where there is none."""
        name = "$1" if self.has("to_regclass", "text") else "pg_catalog.textout($1)"  # it took a cstring
        return self.value(f"SELECT pg_catalog.to_regclass({name})::pg_catalog.oid", ["pg_catalog.text"], [quoted])

    def check_engine(self, what):
        """Raises MopError on Greenplum, whose segments have processes of their own: `what` does not work there yet."""
        if self.has_segments:
            raise MopError(
                f"{what} is not supported on Greenplum yet", sqlstate="0A000", hint="Call it on a PostgreSQL server."
            )

    def info(self, message):
        self.plpy.info(message)

    def notice(self, message, detail=None, hint=None):
        self._tell(self.plpy.notice, message, detail, hint)

    def warning(self, message, detail=None, hint=None):
        self._tell(self.plpy.warning, message, detail, hint)

    def _tell(self, level, message, detail, hint):
        try:
            level(message, **{k: v for k, v in (("detail", detail), ("hint", hint)) if v})
        except TypeError:  # before PostgreSQL 9.6 a message is one text
            level("\n".join(filter(None, (message, detail and f"DETAIL: {detail}", hint and f"HINT: {hint}"))))

    # --- names ---------------------------------------------------------------------------------
    @contextmanager
    def pinned_path(self):
        """Pin search_path (and what else changes the meaning of our SQL) until the block ends: by an error PostgreSQL
        itself restores them."""
        self._before = before = self.plpy.execute(
            "SELECT "
            + ", ".join(f"pg_catalog.current_setting('{name}') AS {name}" for name in ("search_path", *PINNED))
        )[0]
        self._caller_path = before["search_path"]
        self._pin()
        try:
            yield self
        finally:
            self._before = None
        self._set_path(before["search_path"])
        self._set_local({name: before[name] for name in _other(before)})

    def _pin(self):
        self._pinned = True
        self._set_path("pg_catalog, pg_temp")
        self._set_local(_other(self._before))

    def _set_local(self, settings):
        """(What is set on Greenplum goes to all segments.)"""
        if not settings:
            return
        plan = self.plpy.prepare(
            "SELECT " + ", ".join(f"pg_catalog.set_config('{name}', ${i}, true)" for i, name in enumerate(settings, 1)),
            ["pg_catalog.text"] * len(settings),
        )
        self.plpy.execute(plan, list(settings.values()))

    def _set_path(self, path):
        plan = self.plpy.prepare("SELECT pg_catalog.set_config('search_path', $1, true)", ["pg_catalog.text"])
        self.plpy.execute(plan, [path])

    @contextmanager
    def caller_path(self):
        """The caller's own search_path, for looking names up as the caller would."""
        self._set_path(self._caller_path)
        try:
            yield
        finally:
            self._set_path("pg_catalog, pg_temp")

    @property
    def callers_path(self):
        """The search_path by which names are looked up, as text: the caller's own."""
        return self._caller_path

    def look_up_as(self, path):
        """From now on names are looked up by another search_path: a text, or None for the one that it is."""
        self._caller_path = path or self._caller_path

    @contextmanager
    def undone(self):
        """What is done within is taken back at the end, and its locks are given up. What is raised goes through."""
        part = self.plpy.subtransaction()
        part.__enter__()
        try:
            yield
        finally:
            part.__exit__(Exception, None, None)  # rolls it back, as where one is raised

    def identify_by_all(self, table):
        """Of a new table (quoted) without a key: the whole row identifies it, or no row could be updated or deleted
        where there is a publication of all tables."""
        if not self.has_segments:  # (Greenplum has no publications)
            self.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")

    def check_sql(self, sql):
        """Raise PostgreSQL's own error where some SQL cannot be run as it is written.

        Of several statements at once only the syntax is looked at: the first may make what the second needs. No lock
        stays.
        """
        try:
            with self.undone(), self.caller_path():
                self.plpy.prepare(sql)
        except self.plpy.SPIError as error:
            if ";" not in sql.strip().rstrip(";") or getattr(error, "sqlstate", None) == "42601":
                raise

    def parse_name(self, text):
        """'schema.table', 'table' or quoted forms -> (schema or None, table), folded as SQL folds them.

        Raises MopError where the text is no valid name.
        """
        try:
            if self.has("parse_ident", "text, bool"):
                parts = self.value("SELECT pg_catalog.parse_ident($1) AS p", ["text"], [text])
            else:
                parts = _parse_ident(text)
        except (self.plpy.SPIError, ValueError):
            raise MopError(
                f'invalid table name "{text}"', hint='Write it as in SQL: table, schema.table or "Quoted Table".'
            ) from None
        if len(parts) > 2:
            raise MopError(f'invalid table name "{text}"', detail="It has more than two parts.")
        return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])

    def find_table(self, text):
        """The relation that `text` names for the caller, or None. Raises MopError where he may not look there."""
        schema, name = self.parse_name(text)
        quoted = ".".join(quote_identifier(p) for p in (schema, name) if p is not None)
        with self.caller_path():
            try:
                oid = self.relation(quoted)
            except self.plpy.SPIError as error:
                if error.sqlstate != "42501" or schema is None:
                    raise
                raise MopError(
                    f'permission denied for schema "{schema}" of "{text}"',
                    sqlstate="42501",
                    hint=f"GRANT USAGE ON SCHEMA {quote_identifier(schema)} TO "
                    f"{quote_identifier(self.current_user())};",
                ) from None
        if oid is None:
            return None
        row = self.one(
            "SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.oid = $1",
            ["oid"],
            [oid],
        )
        return Table(int(oid), row["nspname"], row["relname"], row["relkind"])

    def _spelt_otherwise(self, text):
        """The quoted name of a relation that differs from `text` by capitals alone, where the caller sees one."""
        schema, name = self.parse_name(text)
        with self.caller_path():
            found = self.one(
                "SELECT CASE WHEN $2::text IS NULL THEN '' ELSE pg_catalog.quote_ident(n.nspname) || '.' END || "
                "pg_catalog.quote_ident(c.relname) AS name FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
                "ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE pg_catalog.lower(c.relname) "
                "OPERATOR(pg_catalog.=) pg_catalog.lower($1) AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,m,f,p}') "
                "AND CASE WHEN $2::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) ELSE "
                "n.nspname OPERATOR(pg_catalog.=) $2 END ORDER BY 1 LIMIT 1",
                ["text", "text"],
                [name, schema],
            )
        return found and found["name"]

    def suffixed(self, text, suffix):
        """The name `text` as it is spelled, with `suffix`, inside its closing quote if any: '"My t"' -> '"My t_info"'.

        Raises MopError where the text is no valid name.
        """
        self.parse_name(text)
        text = text.strip()
        return f'{text[:-1]}{suffix}"' if text.endswith('"') else text + suffix

    def bare(self, text):
        """The name `text` without the quotes that it does not need. Raises MopError where it is no valid name."""
        return ".".join(
            p if re.fullmatch(r"[a-z_][a-z0-9_]*", p) else quote_identifier(p)
            for p in self.parse_name(text)
            if p is not None
        )

    def input_table(self, text, what="input table", hint=None, rows=True):
        """The existing, non-empty, readable table named by `text`.

        Raises MopError: NULL/empty name, does not exist, no privilege, is empty.
        """
        if text is None or not text.strip():
            raise MopError("NULL/empty input table name", detail=f"It is the {what}.", hint=hint)
        table = self.find_table(text)
        if table is None:
            alike = self._spelt_otherwise(text)
            raise MopError(
                f"{what} '{text}' does not exist",
                sqlstate="42P01",  # quoted as by MADlib
                hint=f"There is {alike}: a name with capitals is written in quotes, '{alike}'." if alike else hint,
            )
        if not self.value(
            "SELECT has_schema_privilege($1, 'USAGE') AND has_any_column_privilege($2, 'SELECT')",
            ["text", "oid"],
            [table.schema, table.oid],
        ):
            raise MopError(
                f'permission denied for {what} "{text}"',
                hint=f"GRANT SELECT ON {table} TO {quote_identifier(self.current_user())};",
                sqlstate="42501",
            )
        if rows and self.one(f"SELECT 1 AS x FROM {table} LIMIT 1") is None:
            raise MopError(f'{what} "{text}" is empty', hint=hint)
        return table

    def has_foreign_rows(self, table):
        """True where a Table, or a partition of it, is a foreign table, or is distributed by Citus."""
        if self.has_segments:  # which has no postgres_fdw's
            return False
        return (
            self.value(
                "SELECT EXISTS (SELECT 1 FROM (SELECT relid FROM pg_partition_tree($1::oid::regclass) UNION "
                "SELECT $1::oid::regclass) t JOIN pg_foreign_table f ON f.ftrelid = t.relid)",
                ["oid"],
                [table.oid],
            )
            or (self.distribution(table) or "n") != "n"
        )

    @functools.cached_property
    def has_segments(self):
        """True where the server is the coordinator of segments that hold the rows: Greenplum's."""
        return self.relation("pg_catalog.gp_distribution_policy") is not None

    @functools.cached_property
    def has_citus(self):
        return self.relation("pg_catalog.pg_dist_partition") is not None

    def is_temporary(self, table):
        return self.value("SELECT relpersistence = 't' FROM pg_class WHERE oid = $1", ["oid"], [table.oid])

    def distribution(self, table):
        """How Citus distributes a Table: 'h by <column>' for one distributed by hash, another method's letter alone,
        'n' for one that is not cut into parts (such as a reference table); None where it does not."""
        if not self.has_citus:
            return None
        method = self.value(
            "SELECT CASE partmethod WHEN 'h' THEN 'h by ' || column_to_column_name(logicalrelid, partkey) "
            "ELSE partmethod::text END FROM pg_dist_partition WHERE logicalrelid = $1",
            ["oid"],
            [table.oid],
        )
        self.on_nodes = self.on_nodes or method is not None
        return method

    def output_table(self, text, *suffixes):
        """Check that tables `text` and `text`+suffix can be made; returns their quoted, schema-qualified names.

        Raises MopError: NULL/empty name, invalid name, already exists, no CREATE privilege.
        """
        if text is None or text.strip().lower() in ("", "null"):
            raise MopError("NULL/empty output table name")
        if self.setting("transaction_read_only") == "on":
            raise MopError(f'cannot create "{text}" in a read-only transaction', sqlstate="25006")
        if not re.match(r'[A-Za-z_"\u0080-\uffff]', text.strip()):
            raise MopError(
                f'invalid output table name "{text}"', detail='It must begin with a letter, "_" or a double quote.'
            )
        schema, name = self.parse_name(text)
        temporary = schema is not None and schema.startswith("pg_temp")
        if schema is None:
            with self.caller_path():
                schema = self.value("SELECT pg_catalog.current_schema()")
            if schema is None:
                raise MopError(
                    f'no schema has been selected to create "{text}" in', hint="SET search_path, or write schema.table."
                )
        elif not temporary and self.value("SELECT 1 FROM pg_namespace WHERE nspname = $1", ["text"], [schema]) is None:
            raise MopError(f'schema "{schema}" of output table "{text}" does not exist', sqlstate="3F000")
        if not temporary and not self.value("SELECT has_schema_privilege($1, 'CREATE')", ["text"], [schema]):
            raise MopError(
                f'permission denied to create "{text}" in schema "{schema}"',
                hint=f"GRANT CREATE ON SCHEMA {quote_identifier(schema)} TO {quote_identifier(self.current_user())};",
                sqlstate="42501",
            )
        made = []
        for suffix in ("", *suffixes):
            if len((name + suffix).encode()) > 63:
                raise MopError(f'output table name "{name + suffix}" is longer than 63 bytes')
            full = f"{quote_identifier(schema)}.{quote_identifier(name + suffix)}"
            if self.relation(full) is not None:
                raise MopError(
                    f'output table "{name + suffix}" already exists',
                    hint=f"DROP TABLE {full}; or choose another name.",
                    sqlstate="42P07",
                )
            made.append(full)
        return made if suffixes else made[0]

    def columns(self, table):
        """{column name: type as format_type prints it} of `table`, in order."""
        rows = self.execute(
            "SELECT attname, pg_catalog.format_type(atttypid, NULL) AS t FROM pg_attribute "
            "WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            ["oid"],
            [table.oid],
        )
        return {row["attname"]: row["t"] for row in rows}

    def check_readable(self, table, columns):
        """Raises MopError where the caller may not read one of the columns."""
        for column in columns:
            if not self.value("SELECT has_column_privilege($1, $2, 'SELECT')", ["oid", "text"], [table.oid, column]):
                raise MopError(
                    f'permission denied for column "{column}" of {table}',
                    sqlstate="42501",
                    hint=f"GRANT SELECT ON {table} TO {quote_identifier(self.current_user())};",
                )

    def find_column(self, columns, name):
        """The column that the user's `name` means: exact, else folded to lower case; None if absent."""
        if name in columns:
            return name
        return name.lower() if name.lower() in columns else None

    def current_user(self):
        return self.value("SELECT current_user::text")

    def is_superuser(self):
        return self.value("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")


def listening():
    """(port, directory of the socket, TCP address) of this server; '' where it has no such way in."""
    # of a backend, the current directory is the data directory
    with open("postmaster.pid") as file:
        lines = file.read().splitlines()
    listen = lines[5].strip()
    return lines[3].strip(), lines[4].strip(), "127.0.0.1" if listen in ("*", "0.0.0.0") else listen


def extension_schema(plpy):
    """The schema that holds pg_mop."""
    return plpy.execute(
        "SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n "
        "ON n.oid OPERATOR(pg_catalog.=) e.extnamespace "
        "WHERE e.extname OPERATOR(pg_catalog.=) 'pg_mop'"
    )[0]["nspname"]


def _parse_ident(text):
    """What PostgreSQL's function gives: the parts of a name. Raises ValueError."""
    part = r'\s*("(?:[^"]|"")+"|[A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*)\s*'
    if not re.fullmatch(rf"{part}(?:\.{part})*", text):
        raise ValueError
    return [
        name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
        for name in re.findall(rf"{part}(?:\.|$)", text)
    ]


def raising(plpy, function, *arguments):
    """What `function(*arguments)` gives; its MopError becomes an error of PostgreSQL's."""
    try:
        return function(*arguments)
    except MopError as error:
        problem = error
    raise_error(plpy, problem.message, problem.sqlstate, problem.detail, problem.hint)


# arguments of SQL functions that must be integers: they are double precision there, to which every number turns
INTEGERS = frozenset(
    """
buffer_size dependent_count eta id iterations k max_trials metrics_compute_frequency model_id mst_key num_configs
num_iterations r random_state sessions skip_last
""".split()
)
LONG_INTEGERS = frozenset(("continue_from", "job", "run_id"))
LISTS_OF_INTEGERS = frozenset(("model_id_list", "mst_keys", "num_classes"))
ALL_INTEGERS = INTEGERS | LONG_INTEGERS | LISTS_OF_INTEGERS


def as_integer(name, value):
    """The integer that a number is which an SQL function was given as argument `name`. Raises MopError."""
    if not isinstance(value, float):
        return value
    bits = 31 if name not in LONG_INTEGERS else 53
    if value != value or abs(value) == float("inf") or value != int(value):
        raise MopError(f"{name} must be an integer, not {value:g}")
    if abs(value) >= 2**bits:
        raise MopError(f"{name} is out of range: {value:.0f}", sqlstate="22003")
    return int(value)


def _with_integers(function, values):
    """The arguments of an SQL function, `values`, with integers where they must be such."""
    function = inspect.unwrap(function)
    names = [name for name in inspect.signature(function).parameters if name not in ("db", "session")]
    if names == ["values"]:
        names = function.__globals__["ARGUMENTS"]
    for name, value in zip(names, values):
        if name in INTEGERS or name in LONG_INTEGERS:
            yield as_integer(name, value)
        elif name in LISTS_OF_INTEGERS and value is not None:
            yield [as_integer(name, v) for v in value]
        else:
            yield value


def sql_function(function, commits=False):
    """Make `function(db, *args)` callable from an SQL shim as ``function(plpy, *args)``.

    Arguments that must be integers are (INTEGERS); a function that takes `*values` has their names in its module's
    ARGUMENTS. MopError becomes a PostgreSQL error with its DETAIL and HINT, prefixed by the function's name as in
    MADlib.
    `commits`: the shim is a procedure's, which ends its transaction at every tick.
    """

    @functools.wraps(function)
    def shim(plpy, *args):
        db = Database(plpy, extension_schema(plpy))
        try:
            if commits:
                _begin_procedure(db)
            with db.pinned_path():
                result = function(db, *_with_integers(function, args))
            if commits:
                db.commit()
            return result
        except MopError as error:
            problem = error
        finally:
            for work in db.at_end:
                work()
        raise_error(plpy, f"{function.__name__}: {problem.message}", problem.sqlstate, problem.detail, problem.hint)

    return shim


sql_procedure = functools.partial(sql_function, commits=True)


def _begin_procedure(db):
    """Raises MopError where the procedure may not end transactions."""
    db.commits = True
    try:
        db.commit()
    except db.plpy.SPIError as error:
        if getattr(error, "sqlstate", None) != "2D000":
            raise
        raise MopError(
            "it cannot be called within a transaction block",
            sqlstate="25001",
            detail="It ends its transaction again and again, so as not to hold back VACUUM while it trains.",
            hint="COMMIT; and call again, with autocommit on and not from a block that handles exceptions; "
            "or use the function of the same arguments: SELECT "
            f"{db.extension}.madlib_keras_fit_multiple_model(...);",
        ) from None
