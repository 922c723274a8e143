"""Stages of runs of other roles that share what they train (sql/postgresql/13_sharing.sql).

Runs of other roles have aliases here: negative numbers in the place of run numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from pg_mop.catalog.session import CatalogSession, Row
from pg_mop.catalog.states import parse_copy
from pg_mop.plan.reuse import Beside

__all__ = ["SharedStages", "is_alias"]


def is_alias(run: int) -> bool:
    """True where a number is the alias of another role's run."""
    return run < 0


class SharedStages(CatalogSession):
    """The catalog's stages of other roles' runs, for one run that shares.

    `shares`: that run's number, once `share_run` has found that it shares; None: nothing is asked of other roles' runs.
    """

    shares: int | None = None

    def share_run(self, run_id: int, training: int, validation: int | None) -> bool:
        """Let a run share stages, where its role wants that and may read all rows. `training`, `validation`: OIDs of the
        packed tables. Returns whether the run shares."""
        if self.call("mop_share_run", run_id, self.fencing_token, training, validation):
            self.shares = run_id
        return self.shares is not None

    def _known_shared(self, identities: Sequence[str], beside: Sequence[int]) -> list[Row]:
        """The stages that runs of other roles have trained completely: rows as in Stages.known_stages."""
        if self.shares is None:
            return []
        return self.execute(
            f"SELECT * FROM {self.schema}.mop_known_shared(%s, %s, %s::bigint[])",
            (self.shares, list(identities), [run for run in beside if is_alias(run)]),
        )

    def _shared_beside(self, priority: int) -> list[int]:
        """The aliases of runs of other roles that began before, and go on with at least this priority."""
        if self.shares is None:
            return []
        rows = self.execute(
            f"SELECT s.run FROM {self.schema}.mop_shared_beside(%s, %s) AS s(run)", (self.shares, priority)
        )
        return [row["run"] for row in rows]

    def _shared_stages_beside(self, runs: Sequence[int], identities: Collection[str]) -> Iterator[tuple[str, Beside]]:
        """(identity, Beside) of the stages that these runs (aliases) want."""
        if self.shares is None or not runs:
            return
        for row in self.execute(
            f"SELECT * FROM {self.schema}.mop_shared_stages_beside(%s, %s, %s)",
            (self.shares, list(runs), list(identities)),
        ):
            yield row["identity"], Beside(row["run_id"], row["ends"], row["evaluated"], row["trained"])

    def _adopt_checked(
        self,
        cursor: Any,
        run_id: int,
        stages: str,
        wanted: Sequence[int],
        check: Callable[[int, Any], None],
        scored: Sequence[int],
        check_metrics: Callable[[int, str, Collection[str]], None],
    ) -> bool:
        """Take over stages (JSON, as mop_adopt takes them) and look at the states of those that are `wanted`, and at the
        metrics of those that are `scored` (numbers): `check(number, state)` and `check_metrics(number, dataset, names)` raise
        an error, which undoes the takeover, for a state or metrics that cannot be those of the stage."""
        cursor.execute(f"SELECT {self.schema}.mop_adopt(%s, %s, %s) AS done", (run_id, self.fencing_token, stages))
        if not cursor.fetchone()["done"]:
            return False
        for number in wanted:
            check(number, self._state_of(cursor, run_id, number))
        if scored:
            cursor.execute(
                f"SELECT stage, dataset, metrics FROM {self.prefix}metric WHERE run_id = %s AND stage = ANY (%s)",
                (run_id, list(scored)),
            )
            for row in cursor.fetchall():
                check_metrics(row["stage"], row["dataset"], row["metrics"])
        return True

    def _state_of(self, cursor: Any, run_id: int, stage: int) -> bytes:
        """The state of a stage of the role's own run, as this transaction sees it. (By binary COPY: a query would return
        hexadecimal text.)"""
        version = f"(SELECT version FROM {self.prefix}stage_state WHERE run_id = %s AND stage = %s)"
        query = f"SELECT stage, data FROM {self.schema}.mop_read_states(%s, ARRAY[%s], ARRAY[{version}])"
        found = io.BytesIO()
        cursor.copy_expert(
            cursor.mogrify(f"COPY ({query}) TO STDOUT (FORMAT binary)", (run_id, stage, run_id, stage)), found
        )
        return b"".join(part for _, part in parse_copy(found.getbuffer(), 2))
