"""The run's model states: the servers that have them, and the SQL that carries a state to another server."""

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.call.servers import Server
from pg_mop.catalog.units import Move
from pg_mop.run.state_tables import Sizes, StateTables


class States:
    """The servers that have the run's model states, with their state tables.

    A state has the version that was registered last, on every server that has it. Once it was carried, several servers
    have it, until it is trained further.
    """

    def __init__(self, servers: dict[str | None, Server], size_key: Callable[[int], Hashable]) -> None:
        """`servers`: {name: Server}, with the coordinator's own; `size_key`: see StateTables."""
        self.servers = servers
        self._numbers: dict[str | None, int] = {}  # server -> a number for the names of its foreign tables
        self.of: dict[str | None, StateTables] = {}
        self._sizes = Sizes(size_key)
        for name in servers:
            self.add(name)
        # pairs (source, target): the target's server can read from the source's, under the name that it has here
        self._direct = {
            (source, target)
            for target, server in servers.items()
            if target is not None
            for source in servers
            if source in server.info["servers"]
        }

    def add(self, name: str | None) -> None:
        """Take up a server that has come into `servers`."""
        server = self.servers[name]
        self._numbers.setdefault(name, len(self._numbers))
        self.of[name] = StateTables(server.catalog, server.run_id, self._sizes)

    def lose(self, name: str) -> None:
        """Forget a server that has gone, with all states there."""
        del self.of[name]

    # --- lookups ------------------------------------------------------------------------------------
    @property
    def live(self) -> int:
        """Bytes of all states that are still needed."""
        return sum(state_tables.live for state_tables in self.of.values())

    def stages(self) -> set[int]:
        """The stages that have a state of their own on some server."""
        return {stage for state_tables in self.of.values() for stage in state_tables.where}

    def bytes(self, stage: int) -> int:
        """Bytes of a stage's state, about; 0 where no state of that size key has been written."""
        return self._sizes.bytes(stage)

    def has(self, stage: int) -> bool:
        """True where some server has a state of the stage that is still needed."""
        return any(state_tables.has(stage) for state_tables in self.of.values())

    def is_at(self, stage: int, server: str | None) -> bool:
        """True where that server has it."""
        return self.of[server].has(stage)

    def source(self, stage: int) -> str | None:
        """The name of a server that has a stage's state: the coordinator's own, if it has it."""
        return next(name for name, state_tables in self.of.items() if state_tables.has(stage))

    def only_at(self, name: str) -> bool:
        """True where a server has a state that no other server has."""
        others = [state_tables for other, state_tables in self.of.items() if other != name]
        return any(not any(other.has(stage) for other in others) for stage in self.of[name].where)

    # --- writes of units ----------------------------------------------------------------------------
    def begin(self, stage: int, server: str | None) -> int:
        """The state table on a server that a training unit is to write its stage's state to."""
        return self.of[server].begin(stage)

    def adopted(self, stage: int) -> None:
        """The coordinator's server has initial weights of a stage, or a state taken over from another run."""
        self.of[None].adopted(stage)

    def failed(self, stage: int, server: str | None) -> None:
        """The training unit of a stage wrote nothing."""
        self.of[server].failed(stage)

    def finished(
        self,
        stage: int,
        server: str | None,
        released: Collection[int],
        movable: Callable[[int], bool],
        copied: bool = False,
    ) -> None:
        """A unit has written its stage's state on a server; the states of the stages `released` are needed no more.

        `movable(stage)`: no unit reads that stage's state now. `copied`: the coordinator's server has the state, too.
        """
        own, others = self.of[server], [name for name in self.of if name != server]
        self._release(released, others)
        self._release([stage], [name for name in others if name is not None or not copied])
        own.finished(stage, [other for other in released if own.has(other)])
        with self._unless_away(server):
            own.measure(stage)
            own.tidy(movable)
        if copied:
            self.of[None].tidy(movable)

    @contextlib.contextmanager
    def _unless_away(self, name: str | None) -> Iterator[None]:
        """Leave the work within it for later where another server is away."""
        try:
            yield
        except (psycopg2.Error, MopError):
            if self.servers[name].home:
                raise
            self.servers[name].silent = True

    def release(self, stages: Iterable[int]) -> None:
        """The states of these stages are needed no more."""
        self._release(list(stages), self.of)

    def _release(self, stages: Collection[int], names: Iterable[str | None]) -> None:
        for name in names:
            state_tables, server = self.of[name], self.servers[name]
            if gone := [stage for stage in stages if state_tables.has(stage)]:
                with self._unless_away(name):
                    if not server.silent:  # (else the states are dropped with the run)
                        server.catalog.release_states(server.run_id, gone)
                state_tables.release(gone)

    # --- carrying -----------------------------------------------------------------------------------
    def expect(self, stage: int, version: int, to: str | None) -> Move:
        """The :class:`Move` of a stage's state to a server that lacks it."""
        return Move(stage, version, self.source(stage), to, self.of[to].expect())

    def copy(self, stage: int, version: int, source: str | None) -> Move:
        """The :class:`Move` to the coordinator's server of a state that another server has just made."""
        return Move(stage, version, source, None, self.of[None].expect())

    def copied(self, move: Move, size: int) -> None:
        """A copy has come, and its version counts."""
        self.of[None].release([move.stage])  # the version before
        self.of[None].arrived(move.stage, move.state_table, size)

    def begin_anew(self) -> None:
        """From now on write to an empty state table on the coordinator's server."""
        self.of[None].begin_anew()

    def arrived(self, move: Move, movable: Callable[[int], bool]) -> int:
        """All parts of the state have come: its bytes. `movable`: see `finished`. Raises psycopg2.Error where they have not."""
        server, state_tables = self.servers[move.to], self.of[move.to]
        size = None
        try:
            size = server.catalog.arrived(server.run_id, move.stage, move.version, move.state_table)
        finally:
            state_tables.arrived(move.stage, move.state_table, size)
        with self._unless_away(move.to):
            state_tables.tidy(movable)
        return size

    def given_up(self, move: Move) -> None:
        """The state has not been carried."""
        if move.to in self.of:
            self.of[move.to].arrived(move.stage, move.state_table, None)

    def carrier(self, moves: list[Move]) -> Server:
        """The server with the relay session that carries states, all to one server: the target itself where it can
        reach all sources, otherwise the coordinator's."""
        direct = all((move.source, move.to) in self._direct for move in moves)
        return self.servers[moves[0].to if direct else None]

    def not_direct(self, moves: list[Move]) -> None:
        """States could not be carried directly: from now on they pass through the coordinator."""
        self._direct -= {(move.source, move.to) for move in moves}

    def tables_sql(self, at: Server) -> str:
        """SQL that makes the foreign tables of `move_sql`, for a relay session on a server."""
        made = []
        for name, server in self.servers.items():
            if name is not None and (at.home and not server.home or (name, at.name) in self._direct):
                for view, columns, options in (
                    (
                        "mop_departures",
                        "run_id bigint, stage integer, version integer, part integer, data bytea, server text",
                        "fetch_size '1'",
                    ),
                    (
                        "mop_arrivals",
                        "run_id bigint, stage integer, version integer, target integer, part integer, data bytea",
                        "batch_size '1'",
                    ),
                ):
                    made.append(
                        f"CREATE FOREIGN TABLE IF NOT EXISTS {self._table(at, name, view)} ({columns}) SERVER "
                        f"{quote_identifier(name)} OPTIONS (schema_name "
                        f"{quote_literal(_unquoted(server.schema))}, table_name '{view}', {options})"
                    )
        return "; ".join(made)

    def move_sql(self, at: Server, move: Move) -> str:
        """SQL that carries a state from one server to another in one statement, without storing it on the way."""
        source, target = self.servers[move.source], self.servers[move.to]
        assert source.run_id is not None and target.run_id is not None
        return (
            f"INSERT INTO {self._table(at, move.to, 'mop_arrivals')} (run_id, stage, version, target, part, data) "
            f"SELECT {int(target.run_id)}, stage, version, {int(move.state_table)}, part, data "
            f"FROM {self._table(at, move.source, 'mop_departures')} WHERE run_id = {int(source.run_id)} "
            f"AND stage = {int(move.stage)} AND version = {int(move.version)} "
            f"AND server = {quote_literal(source.info['identity'])}"
        )

    def _table(self, at: Server, name: str | None, view: str) -> str:
        """A view of the server `name`, as a session of the server `at` calls it."""
        if name == at.name:
            return f"{at.schema}.{view}"
        return f"pg_temp.{quote_identifier(f'{view}_{self._numbers[name]}')}"


def _unquoted(identifier: str) -> str:
    return identifier[1:-1].replace('""', '"') if identifier.startswith('"') else identifier
