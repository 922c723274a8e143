"""Stage states in their state tables, and stored predictions."""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.catalog.session import CatalogSession, Row

READ_BYTES = 8 << 20  # of stage states that one statement reads


class States(CatalogSession):
    """The catalog's stage states."""

    def models(self, run_id: int) -> dict[int, Row]:
        """{stage: {version, state_table, bytes}} of a run's stages that have a state: trained, or initial weights."""
        return {
            row["stage"]: row
            for row in self.execute(
                f"""
                SELECT stage, version, state_table, bytes FROM {self.prefix}stage_state
                WHERE run_id = %s AND bytes IS NOT NULL
                """,
                (run_id,),
            )
        }

    def state_bytes(self, run_id: int, stage: int) -> int | None:
        """The size of a stage's state in bytes."""
        return self.value(
            f"SELECT bytes FROM {self.prefix}stage_state WHERE run_id = %s AND stage = %s", (run_id, stage)
        )

    def state_tables(self, run_id: int) -> set[int]:
        """The numbers of a run's state tables."""
        return {
            row["state_table"]
            for row in self.execute(f"SELECT state_table FROM {self.prefix}state_table WHERE run_id = %s", (run_id,))
        }

    def new_state_table(self, run_id: int, state_table: int) -> None:
        """Create a state table; units write their states to the newest."""
        self.call("mop_new_state_table", run_id, state_table)

    def drop_state_tables(self, run_id: int, state_tables: Collection[int]) -> set[int]:
        """Drop state tables (numbers), except those with a needed state or a reader. Returns the dropped ones."""
        with self._waiting_for_locks(10):
            dropped = self.execute(
                f"SELECT {self.schema}.mop_drop_state_tables(%s, %s) AS number", (run_id, list(state_tables))
            )
        return {row["number"] for row in dropped}

    def move_states(self, run_id: int, stages: Iterable[int], state_table: int) -> None:
        """Move the states of stages (numbers) that train no more into a state table (compaction)."""
        self.call("mop_move_states", run_id, list(stages), state_table)

    def release_states(self, run_id: int, stages: Iterable[int]) -> None:
        """Note that the states of stages (numbers) are no longer needed."""
        self.call("mop_release_states", run_id, self.fencing_token, list(stages))

    def states(self, run_id: int, outcomes: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        """The states (bytes-like) of `outcomes` (dicts from `outcome`, each with a stage), in order.

        Small states are read together, by binary COPY: a query would return hexadecimal text. Raises MopError if a
        state is missing.
        """
        at = 0
        while at < len(outcomes):
            end = at + 1
            while end < len(outcomes) and sum(c["bytes"] or READ_BYTES for c in outcomes[at : end + 1]) <= READ_BYTES:
                end += 1
            parts: dict[int, list[Any]] = {}
            for stage, part in parse_copy(self._retrying(self._copy_states, run_id, outcomes[at:end]).getbuffer(), 2):
                parts.setdefault(struct.unpack("!i", stage)[0], []).append(part)
            for c in outcomes[at:end]:
                found = parts.get(c["stage"])
                if not found:
                    raise MopError(f"the state of stage {c['stage']} of run {run_id} is missing", sqlstate="XX001")
                yield found[0] if len(found) == 1 else b"".join(found)
            at = end

    def _copy_states(self, run_id: int, outcomes: Sequence[Mapping[str, Any]]) -> io.BytesIO:
        versions = {c["stage"]: c["version"] for c in outcomes}  # equal configurations share a stage
        parts = io.BytesIO()
        with self.connection.cursor() as cursor:
            query = f"SELECT stage, data FROM {self.schema}.mop_read_states(%s, %s, %s)"
            cursor.copy_expert(
                cursor.mogrify(
                    f"COPY ({query}) TO STDOUT (FORMAT binary)", (run_id, list(versions), list(versions.values()))
                ),
                parts,
            )
        return parts

    def predictions(self, run_id: int, segment: int) -> Iterator[bytes]:
        """The stored parts of a partition's predictions, in order."""
        number = 0
        while (part := self.call("mop_read_predictions", run_id, segment, number)) is not None:
            yield bytes(part)
            number += 1


def parse_copy(data: memoryview, columns: int) -> list[list[memoryview]]:
    """The rows of COPY's binary format with so many columns, none of them NULL."""
    offset = 19 + struct.unpack_from("!i", data, 15)[0]  # signature, flags, length of the header's extension
    rows: list[list[memoryview]] = []
    while struct.unpack_from("!h", data, offset)[0] >= 0:
        offset += 2
        rows.append([])
        for _ in range(columns):
            size = struct.unpack_from("!i", data, offset)[0]
            rows[-1].append(data[offset + 4 : offset + 4 + size])
            offset += 4 + size
    return rows
