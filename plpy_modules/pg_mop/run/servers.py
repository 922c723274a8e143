"""The servers that a run is at work on, and what it has there: its states, and the carrying of them."""

import contextlib
from dataclasses import dataclass
from typing import Any

import psycopg2

from pg_mop.backend.database import MopError, quote_identifier, quote_literal
from pg_mop.connections.targets import Target
from pg_mop.run.state_tables import StateTables


@dataclass
class Server:
    """A server and the run's own run there. `name`: the foreign server's, None: the coordinator's own server, whose
    catalog leads; `schema`: the extension's there (quoted); `info`: what it says of itself (api/servers.py)."""

    name: str | None
    target: Target
    catalog: Any
    run_id: int | None
    schema: str
    info: dict
    silent: bool = False  # it was away, or did not answer, when it was asked last

    @property
    def home(self):
        return self.name is None


class States:
    """Where the run's model states are: on which servers, and there in which generation.

    A state is in the version that was registered last wherever it is; several servers have it once it was carried
    from one to the other, until it is trained on.
    """

    def __init__(self, servers, size_key):
        """`servers`: {name: Server}, the home among them; `size_key`: see Generations."""
        self.servers, self._numbers, self.of = servers, {}, {}
        self._shared = size_key, {}, set()
        for name in servers:
            self.add(name)
        # (source, target): the target itself can reach the source, by the name that it has here
        self._straight = {
            (source, target)
            for target, server in servers.items()
            if target is not None
            for source in servers
            if source in server.info["servers"]
        }

    def add(self, name):
        """A server has come into `servers`."""
        server = self.servers[name]
        self._numbers.setdefault(name, len(self._numbers))
        self.of[name] = StateTables(server.catalog, server.run_id, *self._shared)

    def lose(self, name):
        """A server has gone, with all states there."""
        del self.of[name]

    @property
    def live(self):
        """Bytes of all states of use."""
        return sum(state_tables.live for state_tables in self.of.values())

    def stages(self):
        """The stages that have a state of their own, anywhere."""
        return set().union(*(state_tables.where for state_tables in self.of.values()))

    def bytes(self, stage):
        """Bytes of a stage's state, about; 0 where none of its kind has been written."""
        return self.of[None].bytes(stage)

    def has(self, stage):
        """True where the stage has a state of its own that is of use, anywhere."""
        return any(state_tables.has(stage) for state_tables in self.of.values())

    def is_at(self, stage, server):
        """True where it has it on a server (its name)."""
        return self.of[server].has(stage)

    def source(self, stage):
        """The name of a server that has a stage's state; the coordinator's own, if it has it."""
        return next(name for name, state_tables in self.of.items() if state_tables.has(stage))

    def begin(self, stage, server, state_table=None):
        """The state_table on a server that a training unit is to write its stage's state to, or has written to."""
        return self.of[server].begin(stage, state_table)

    def adopted(self, stage):
        """A stage has initial weights, or its state was taken over from another run: here."""
        self.of[None].adopted(stage)

    def failed(self, stage, server):
        """The unit wrote nothing."""
        self.of[server].failed(stage)

    def finished(self, stage, server, released, movable, copied=False):
        """The unit has written its stage's state on a server; those of the stages `released` are of no use any more.

        `movable(stage)`: nobody reads that stage's state now; `copied`: the coordinator's own server has it, too.
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
    def _unless_away(self, name):
        """What is done within it is done some other time where another server is away."""
        try:
            yield
        except (psycopg2.Error, MopError):
            if self.servers[name].home:
                raise
            self.servers[name].silent = True

    def release(self, stages):
        """The states of these stages are of no use any more."""
        self._release(stages, self.of)

    def _release(self, stages, names):
        for name in names:
            state_tables, server = self.of[name], self.servers[name]
            if gone := [stage for stage in stages if state_tables.has(stage)]:
                with self._unless_away(name):
                    if not server.silent:  # (else they go with the run)
                        server.catalog.release_states(server.run_id, gone)
                state_tables.release(gone)

    # --- carrying -----------------------------------------------------------------------------------
    def expect(self, stage, version, to):
        """A :class:`Move` of a stage's state to a server that has it not."""
        return Move(stage, version, self.source(stage), to, self.of[to].expect())

    def copy(self, stage, version, source):
        """A :class:`Move` of a stage's state, just made on a server, to the coordinator's own."""
        return Move(stage, version, source, None, self.of[None].expect())

    def copied(self, move, size):
        """A copy has come, and its version counts."""
        self.of[None].release([move.stage])  # the version before
        self.of[None].arrived(move.stage, move.state_table, size)

    def begin_anew(self):
        """What is written on the coordinator's own server from now on stands beside nothing that was there before."""
        self.of[None].begin_anew()

    def only_at(self, name):
        """True where a server has a state that no other has."""
        return any(
            all(not own.has(stage) for other, own in self.of.items() if other != name) for stage in self.of[name].where
        )

    def arrived(self, move, movable):
        """All parts of the state are there; `movable`: see `finished`. Raises psycopg2.Error where they are not."""
        server, state_tables = self.servers[move.to], self.of[move.to]
        size = None
        try:
            size = server.catalog.arrived(server.run_id, move.stage, move.version, move.state_table)
        finally:
            state_tables.arrived(move.stage, move.state_table, size)
        with self._unless_away(move.to):
            state_tables.tidy(movable)

    def given_up(self, move):
        """The state has not been carried."""
        if move.to in self.of:
            self.of[move.to].arrived(move.stage, move.state_table, None)

    def carrier(self, moves):
        """The Server in a session of which states are carried, all to one server: that one, where it can reach those
        that they come from, or else the coordinator's own."""
        straight = all((move.source, move.to) in self._straight for move in moves)
        return self.servers[moves[0].to if straight else None]

    def not_straight(self, moves):
        """States could not be carried straight: from now on they come through the coordinator."""
        self._straight -= {(move.source, move.to) for move in moves}

    def tables_sql(self, at):
        """SQL that makes what `move_sql` uses, for a session of a Server as the role there."""
        made = []
        for name, server in self.servers.items():
            if at.home and not server.home or (name, at.name) in self._straight:
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

    def move_sql(self, at, move):
        """SQL that carries a state from one server to another, in one statement that stores nothing on the way."""
        source, target = self.servers[move.source], self.servers[move.to]
        return (
            f"INSERT INTO {self._table(at, move.to, 'mop_arrivals')} (run_id, stage, version, target, part, data) "
            f"SELECT {int(target.run_id)}, stage, version, {int(move.state_table)}, part, data "
            f"FROM {self._table(at, move.source, 'mop_departures')} WHERE run_id = {int(source.run_id)} "
            f"AND stage = {int(move.stage)} AND version = {int(move.version)} "
            f"AND server = {quote_literal(source.info['identity'])}"
        )

    def _table(self, at, name, view):
        """A view of the server `name`, for a session of the Server `at`."""
        if name == at.name:
            return f"{at.schema}.{view}"
        return f"pg_temp.{quote_identifier(f'{view}_{self._numbers[name]}')}"


@dataclass(frozen=True)
class Move:
    """A stage's state, at a version, is to be carried from one server to a state_table on another (their names)."""

    stage: int
    version: int
    source: str | None
    to: str | None
    state_table: int


def _unquoted(identifier):
    return identifier[1:-1].replace('""', '"') if identifier.startswith('"') else identifier
