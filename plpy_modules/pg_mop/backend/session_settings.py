"""Settings of the sessions that a call opens, and how such a session reaches this server."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pg_mop.backend.quoting import quote_identifier, quote_literal

# Every session that a call opens has these settings: the settings of its role or database must not change the meaning
# and the results of our SQL. No statement of ours has a time limit, since its time grows with the run; a wait for another
# session has one, lock_timeout. (No JIT: plans that avoid nested loops seem expensive, and their compilation takes longer
# than they do.)
SESSION_OPTIONS = (
    "-c search_path=pg_catalog,pg_temp -c client_min_messages=error -c client_encoding=UTF8 "
    "-c extra_float_digits=3 -c row_security=on -c default_transaction_isolation=read\\ committed "
    "-c default_transaction_read_only=off -c idle_in_transaction_session_timeout=0 "
    "-c idle_session_timeout=0 -c transaction_timeout=0 -c statement_timeout=0 -c jit=off"
)
# A server must notice that the coordinator's machine has failed.
KEEPALIVES = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"


def options_without(lacks: Collection[str], text: str) -> str:
    """libpq's options (-c name=value ...) without the settings in `lacks`.

    >>> options_without({"jit"}, "-c jit=off -c row_security=on")
    '-c row_security=on'
    """
    return re.sub(r"-c (\w+)=\S+ ?", lambda found: "" if found[1] in lacks else found[0], text)


def first_sql(target: Any) -> str:
    """The SQL, ending in a semicolon, that a new session runs first.

    It sets the role: the login may have set another. It also sets a setting that SESSION_OPTIONS cannot:
    another server may not know transaction_timeout. And it sets the settings of the caller's application: policies and views
    that read them then show the session the rows that the caller sees.
    """
    if target.server is None:
        carried = "".join(
            f"SELECT pg_catalog.set_config({quote_literal(name)}, {quote_literal(value)}, false); "
            for name, value in target.settings
        )
        return f"SET ROLE {quote_identifier(target.role)}; {carried}"
    return (
        "SELECT pg_catalog.set_config(s.name, '0', false) FROM pg_catalog.pg_settings s "
        "WHERE s.name OPERATOR(pg_catalog.=) 'transaction_timeout'; "
        f"SET ROLE {quote_identifier(target.role)}; "
    )


def listening() -> tuple[str, str, str]:
    """(port, socket directory, TCP address) of this server; an entry is '' if the server does not listen so."""
    with open("postmaster.pid") as file:  # a backend's current directory is the data directory
        lines = file.read().splitlines()
    listen = lines[5].strip()
    return lines[3].strip(), lines[4].strip(), "127.0.0.1" if listen in ("*", "0.0.0.0") else listen
