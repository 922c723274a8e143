"""The deadline of a call that trains: pg_mop.deadline, as a time, and whether the run will make it."""

from __future__ import annotations

import re
import time
from typing import Any

from pg_mop.backend.errors import MopError

LATEST = 253_402_214_400  # 9999-12-31: Python and many clients have no later times


class Deadline:
    """A time at which a run should have ended. `text`: in the caller's time zone; `at`: time.time()."""

    def __init__(self, text: str, at: float) -> None:
        self.text, self.at = text, at

    def late_by(self, seconds: float) -> float:
        """Seconds by which a call that begins now and takes so many seconds ends after the deadline; 0: in time."""
        return max(0.0, time.time() + seconds - self.at)


def read(db: Any, text: str | None) -> Deadline | None:
    """The deadline that the setting names, or None. Raises MopError for a text that names no time, or more than one, and for
    a time that is past or beyond the year 9999."""
    if not text:
        return None
    if is_ambiguous(text):
        raise MopError(
            f'ambiguous value for setting "pg_mop.deadline": "{text}"',
            detail="It may be a time of day or a date, or an interval from now.",
            hint="SET pg_mop.deadline = '2030-12-01 17:00'; or SET pg_mop.deadline = '17 hours';",
            sqlstate="22023",
        )
    found = db.execute(
        f"SELECT isfinite(t.at) AS is_time, t.at::text AS text, CASE WHEN isfinite(t.at) THEN extract(epoch FROM t.at) END"
        f"::float8 AS at FROM (SELECT {db.extension}.mop_time($1) AS at) AS t",
        ["text"],
        [text],
    )[0]
    if not found["is_time"]:
        raise MopError(
            f'invalid value for setting "pg_mop.deadline": "{text}"',
            detail="It takes a time such as 2030-12-01 08:00, or an interval from now such as 2 hours.",
            hint="SET pg_mop.deadline = '2 hours';",
            sqlstate="22023",
        )
    if found["at"] <= time.time():
        raise MopError(
            f"the deadline {found['text']} (pg_mop.deadline) is not in the future",
            hint="RESET pg_mop.deadline; or SET pg_mop.deadline = '2 hours';",
            sqlstate="22023",
        )
    if found["at"] > LATEST:
        raise MopError(
            f"the deadline {found['text']} (pg_mop.deadline) is beyond the year 9999",
            hint="RESET pg_mop.deadline; or SET pg_mop.deadline = '2 hours';",
            sqlstate="22023",
        )
    return Deadline(found["text"], found["at"])


def is_ambiguous(text: str) -> bool:
    """Whether a text has numbers and no unit, and is no date: PostgreSQL takes '17:00' for 17 hours, and '2030' for seconds."""
    return bool(re.fullmatch(r"[\s\d.:+-]*\d[\s\d.:e+-]*", text, re.IGNORECASE)) and not re.search(
        r"\d+[.-]\d+[.-]\d+", text
    )


def warning(deadline: Deadline, seconds: float, sessions: int) -> tuple[str, str, str] | None:
    """Message, DETAIL and HINT where a run of so many seconds misses its deadline even if it is alone, or None."""
    late = deadline.late_by(seconds)
    if not late:
        return None
    return (
        f"this run is expected to end {late:.0f} s after its deadline, even if no other run takes its cores",
        f"It is expected to take {seconds:.0f} s with {sessions} worker session{'s' * (sessions != 1)}; the deadline is "
        f"{deadline.text}.",
        "Ask for fewer configurations or iterations, or SET pg_mop.deadline to a later time; EXPLAIN or mop_explain tells "
        "what a call takes.",
    )
