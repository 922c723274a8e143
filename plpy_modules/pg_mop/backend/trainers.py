"""The trainer of a unit: in the worker session's own process, or in the session's process on a segment of Greenplum.

Both classes have the methods of :class:`LocalTrainer`, which are coroutines of queries (backend/queries.py).
:class:`SegmentTrainer` yields statements that run on the segment and call the functions at the end of this module.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mop_udf
from mop_udf import aggregate
from mop_udf.aggregate import Session
from mop_udf.errors import raise_error
from mop_udf.params import params
from mop_udf.pool import fork_server_client
from mop_udf.pool.channel import PART_BYTES
from mop_udf.pool.process import TrainerLost
from mop_udf.unit_spec import SpecError, UnitHeader, UnitModel, UnitRequest, steps_of
from pg_mop.backend import explaining, object_table, settings
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import raising
from pg_mop.backend.limits import Limits
from pg_mop.backend.queries import Coroutine, Query
from pg_mop.backend.quoting import quote_identifier

Options = Mapping[str, Any]  # of a trainer
Segments = Sequence[
    tuple[UnitHeader, str]
]  # of a chain: what the trainer is told of the rows, and the SQL that sends them
Changes = Sequence[dict[str, Any]]  # the later steps of a chain, see UnitRequest.then
State = Mapping[str, Any]  # the row of a state in the catalog
Objects = Sequence[Mapping[str, bytes]]  # of each model the pickles of its custom functions, by name
Versions = Sequence[tuple[int, int]]  # stage and version of each state
SMALL = 256 << 10  # bytes of a small state: several of them are written and sent with one statement


def trainer_at(
    holder: Session,
    schema: str,
    host_segment: int | None,
    keys: Mapping[str, int] | None = None,
    functions: str | None = None,
) -> LocalTrainer | SegmentTrainer:
    """The LocalTrainer, or the SegmentTrainer of a host segment.

    `schema`: the extension's schema, quoted; `host_segment`: its dist_key in mop_host_segment
    (sql/greenplum/13_host_segments.sql), or None; `keys`: {segment (text): dist_key of its units' host segment};
    `functions`: the object table.
    """
    return (
        LocalTrainer(holder, schema)
        if host_segment is None
        else SegmentTrainer(holder, schema, host_segment, keys or {}, functions)
    )


def expect(db: Database, options: Mapping[str, Any] | None = None) -> None:
    """Have the fork server import Keras while the user prepares a call that trains; without effect where it has.

    Called where data or architectures are being prepared. The later call meets any problem again and reports it.
    `options`: from settings.load, if the caller has them.
    """
    if explaining.prepares():
        return
    try:
        options = options or settings.load(db, check_names=False)
    except MopError:
        return
    if options["fork_server_idle_timeout"] and not options["trainers"] and not db.has_segments:
        fork_server_client.expect(mop_udf.home, options["keras_backend"], options["fork_server_idle_timeout"])


class LocalTrainer:
    """The trainer of this process."""

    def __init__(self, holder: Session, schema: str) -> None:
        """`holder`: the mop_udf.aggregate.Session."""
        self.holder, self.schema = holder, schema
        self.nets: list[str] = []  # digests of the compiled models that the trainer held when its lease began

    def start(self, options: Options, look_again: bool = False, wants: Options | None = None) -> Coroutine[None]:
        """Lease or start the trainer, unless the session has it, within the limits of the calling role; `wants`: see
        process.Trainer."""
        limits = Limits(self.holder.plpy, self.schema)
        self.nets = raising(self.holder.plpy, self.holder.start_trainer, options, limits, look_again, wants).nets
        yield from ()

    def threads(self, options: Options) -> int:
        """How many threads the running trainer has, which was requested with `options`."""
        return self.holder.running().options["threads"]

    def begin(
        self, options: Options, unit: UnitHeader, models: Sequence[UnitModel], objects: Objects
    ) -> Coroutine[bool]:
        """Start the trainer, unless it runs; return whether it holds or can keep the rows of a unit (as for `give`)."""
        yield from self.start(options)
        return self._keeps(unit)

    def begin_chain(self, options: Options, segments: Segments) -> Coroutine[Any]:
        """Start the trainer, unless it runs, and have it keep the rows of `segments`.

        Returns the numbers of the segments whose rows were sent; None where the trainer cannot keep the rows of all.
        """
        yield from self.start(options)
        loaded = []
        for segment, rows_sql in segments:
            if not self._keeps(segment):
                return None
            if segment.dataset not in self.holder.running().datasets:
                self.holder.begin(_loading(segment), [], (), [])
                yield Query(rows_sql % {"epochs": 1})
                loaded.append(segment.segment)
        return loaded

    def _keeps(self, unit: UnitHeader) -> bool:
        return self.holder.holds(unit.dataset, unit.nbytes, unit.keep)

    def states(
        self, run_id: int, versions: Versions, token: str, taken: Mapping[int, State]
    ) -> Coroutine[Iterable[tuple[int, Any]]]:
        """The states of stages, [(stage, version), ...], for `give`: pairs (stage, part), all parts of a state in order.

        `taken`: {stage: its row of mop_take_states}.
        """
        if not versions:
            return ()
        rows = yield Query(
            f"SELECT stage, data FROM {self.schema}.mop_read_states($1, $2, $3, $4)",
            ("bigint", "integer[]", "integer[]", "text"),
            (run_id, [stage for stage, _ in versions], [version for _, version in versions], token),
            by_cursor=True,
        )
        return ((row["stage"], row["data"]) for row in rows)

    def give(
        self,
        unit: UnitHeader,
        models: Sequence[UnitModel],
        states: Iterable[tuple[int, Any]],
        objects: Objects,
        then: Changes = (),
    ) -> Coroutine[None]:
        """Send the trainer a unit, with the states that `states` returned: (stage, part). `then`: see UnitRequest."""
        self.holder.begin(unit, models, states, objects, then)
        yield from ()

    def work(self, rows_sql: str) -> Coroutine[tuple[dict[str, Any], bool]]:
        """Send the rows unless the trainer holds them, and wait: (report as a dict, whether rows were sent)."""
        unit = self.holder.unit
        assert unit is not None
        if not unit.sends_rows:
            return self.holder.end(), False
        rows = yield Query(rows_sql % {"epochs": unit.epochs_sent})
        return json.loads(rows[0]["report"]), True

    def score(self, number: int, sums: Sequence[float]) -> Coroutine[Any]:
        """The loss and metrics of model `number` of the last evaluation, from sums over all rows."""
        yield from ()
        return self.holder.score(number, sums)

    def save(self, run_id: int, made: Sequence[tuple[int, int, int]], token: str) -> Coroutine[Any]:
        """Write the new states of the last unit's models, `made`: [(stage, version, state_table), ...]; return their bytes."""
        sizes = [0] * len(made)
        small: dict[int, list[tuple[int, int, bytes]]] = {}
        for number, parts in itertools.groupby(self.holder.save(list(range(len(made)))), key=lambda item: item[0]):
            stage, version, state_table = made[number]
            for position, (_, part) in enumerate(parts):
                sizes[number] += len(part)
                if position or len(part) > SMALL:
                    yield put_state(self.schema, run_id, stage, version, state_table, position, part, token)
                else:
                    small.setdefault(state_table, []).append((stage, version, part))
        for state_table, states in small.items():
            stages, versions, contents = map(list, zip(*states))
            yield Query(
                f"SELECT {self.schema}.mop_put_states($1, $2, $3, $4, $5, $6)",
                ("bigint", "integer[]", "integer[]", "integer", "bytea[]", "text"),
                (run_id, stages, versions, state_table, contents, token),
            )
        return sizes

    def failed(self) -> None:
        """The unit failed: stop the trainer if it still works on the unit, since no one will read its answer."""
        if self.holder.unit is not None:
            self.holder.stop_trainer()


class SegmentTrainer:
    """The trainer of this session's process on a host segment.

    A session has one trainer at a time. Where a unit is on another segment than the unit before, the session's process
    there leases the trainer that the process on the former segment gives back.
    """

    def __init__(
        self, holder: Session, schema: str, host_segment: int, keys: Mapping[str, int], functions: str | None
    ) -> None:
        self.holder, self.schema, self.host_segment, self.keys = holder, schema, int(host_segment), keys
        self.functions = functions
        self.sent: dict[str, Any] | None = None  # the answer of at_begin to the current unit
        self.nets: list[str] = []  # as of process.Trainer, once this object has started the trainer

    def _at(
        self, call: str, types: tuple[str, ...] = (), values: tuple[Any, ...] = (), host_segment: int | None = None
    ) -> Coroutine[Any]:
        """The result of one of our functions on a host segment, by default on this trainer's."""
        key = self.host_segment if host_segment is None else host_segment
        rows = yield Query(
            f"SELECT {self.schema}.{call} AS answer FROM {self.schema}.mop_host_segment WHERE dist_key = {key}",
            types,
            values,
        )
        if not rows:
            raise_error(self.holder.plpy, f"there is no host segment {key}", "22023")
        return rows[0]["answer"]

    def start(self, options: Options, look_again: bool = False, wants: Options | None = None) -> Coroutine[None]:
        if self.host_segment not in self.holder.host_segments:
            yield Query(f"SELECT {self.schema}.mop_share_host($1)", ("integer",), (self.host_segment,))
            self.holder.host_segments.add(self.host_segment)
        left = yield from self._leave()
        text = json.dumps({**options, "wants": {**(wants or {}), "trainer": left}})
        answer = yield from self._at("mop_at_start($1, $2)", ("text", "boolean"), (text, look_again))
        self.holder.host_segment, self.nets = self.host_segment, json.loads(answer)["nets"]

    def _leave(self) -> Coroutine[int | None]:
        """Give the session's trainer back if it is on another host segment; return its process ID, or None."""
        before, self.holder.host_segment = self.holder.host_segment, None
        if before in (None, self.host_segment):
            return None
        return (yield from self._at("mop_at_leave()", host_segment=before))

    def threads(self, options: Options) -> int:
        return options["threads"]  # a limit of the role may allow fewer

    def begin(
        self, options: Options, unit: UnitHeader, models: Sequence[UnitModel], objects: Objects
    ) -> Coroutine[bool]:
        yield from self._lend(models, objects)
        self.sent = None
        if self.holder.host_segment == self.host_segment:
            self.sent = yield from self._hand(unit, models, objects, options)
        if self.sent is None:
            yield from self.start(options, wants=_wants(models, [unit.dataset]))
            self.sent = yield from self._hand(unit, models, objects, options)
            assert self.sent is not None
        return self.sent["keeps_rows"]

    def begin_chain(self, options: Options, segments: Segments) -> Coroutine[Any]:
        if (
            self.holder.host_segment != self.host_segment
            or (keeps := (yield from self._keep(options, segments))) is None
        ):
            yield from self.start(options, wants=_wants((), [segment.dataset for segment, _ in segments]))
            keeps = yield from self._keep(options, segments)
        if keeps is None or None in keeps:
            return None
        loaded = []
        for (segment, rows_sql), is_held in zip(segments, keeps, strict=True):
            if not is_held:
                there = SegmentTrainer(
                    self.holder, self.schema, self.keys[str(segment.segment)], self.keys, self.functions
                )
                yield from there.begin(options, _loading(segment), (), ())
                yield from there.work(rows_sql)
                loaded.append(segment.segment)
        if self.holder.host_segment != self.host_segment:
            yield from self.start(options)
        return loaded

    def _keep(self, options: Options, segments: Segments) -> Coroutine[list[bool | None] | None]:
        """For each of `segments`: True if the trainer holds its rows, False if it can keep them, None if it cannot; None if no
        trainer runs."""
        rows = [[segment.dataset, segment.nbytes, segment.keep] for segment, _ in segments]
        text = json.dumps({"options": options, "segments": rows})
        return json.loads((yield from self._at("mop_at_keep($1)", ("text",), (text,))) or "null")

    def _lend(self, models: Sequence[UnitModel], objects: Objects) -> Coroutine[None]:
        """Send the models' custom functions to the host segment."""
        if any(objects):
            yield Query(
                f"SELECT {self.schema}.mop_give_objects($1, $2, $3)",
                ("integer", "text", "text"),
                (
                    self.host_segment,
                    self.functions,
                    json.dumps(
                        [[model.compile_params, model.functions] for model, digests in zip(models, objects) if digests]
                    ),
                ),
            )

    def _hand(
        self,
        unit: UnitHeader,
        models: Sequence[UnitModel],
        objects: Objects,
        options: Options | None = None,
        then: Changes = (),
    ) -> Coroutine[Any]:
        """Send a unit to the trainer; return the answer of at_begin."""
        named = [dataclasses.replace(model, objects=list(names)) for model, names in zip(models, objects)]
        text = json.dumps(
            {"options": options, "unit": UnitRequest(**vars(unit), models=named, then=list(then)).to_json()}
        )
        return json.loads((yield from self._at("mop_at_begin($1)", ("text",), (text,))) or "null")

    def give(
        self,
        unit: UnitHeader,
        models: Sequence[UnitModel],
        states: Iterable[tuple[int, Any]],
        objects: Objects,
        then: Changes = (),
    ) -> Coroutine[None]:
        if self.sent is not None and self.sent["begun"]:
            self.sent["begun"] = False  # further models of the unit are sent separately
        else:
            yield from self._lend(models, objects)
            self.sent = {**(yield from self._hand(unit, models, objects, then=then)), "begun": False}
        states = list(states)
        together = yield from self._give_together(
            [(wanted, state) for wanted, state in states if (state["bytes"] or SMALL + 1) <= SMALL]
        )
        for wanted, state in states:
            if wanted in together:
                continue
            parts = (
                yield Query(
                    f"SELECT {self.schema}.mop_give_state($1, $2, $3, $4, $5, $6, $7, $8, $9) AS parts",
                    ("bigint", *["integer"] * 6, "boolean", "text"),
                    (
                        state["run_id"],
                        state["stage"],
                        state["version"],
                        state["state_table"],
                        state["dist_key"],
                        self.host_segment,
                        wanted,
                        (state["bytes"] or PART_BYTES + 1) <= PART_BYTES,
                        state["token"],
                    ),
                )
            )[0]["parts"]
            if not parts:
                raise_error(
                    self.holder.plpy,
                    f"the state of stage {wanted} at version {state['version']} is missing",
                    aggregate.SOURCE_CHANGED,
                )

    def _give_together(self, states: Sequence[tuple[int, State]]) -> Coroutine[Collection[int]]:
        """Send small states, one part each, with few statements; return the stages whose states were found."""
        if not states:
            return ()
        columns = [
            [wanted for wanted, _ in states],
            *([state[name] for _, state in states] for name in ("stage", "version", "state_table", "dist_key")),
        ]
        first = states[0][1]
        return set(
            (
                yield Query(
                    f"SELECT {self.schema}.mop_give_states($1, $2, $3, $4, $5, $6, $7, $8) AS given",
                    ("bigint", *["integer[]"] * 5, "integer", "text"),
                    (first["run_id"], *columns, self.host_segment, first["token"]),
                )
            )[0]["given"]
        )

    def states(
        self, run_id: int, versions: Versions, token: str, taken: Mapping[int, State]
    ) -> Coroutine[Iterable[tuple[int, Any]]]:
        """The location of each state. The trainer fetches the state from there directly."""
        stages_taken = [
            stage
            for stage, version in versions
            if stage in taken and taken[stage]["state_table"] is not None and taken[stage]["version"] == version
        ]
        places = [{**taken[stage], "wanted": stage, "segment": taken[stage]["made_on"]} for stage in stages_taken]
        if others := [wanted for wanted in versions if wanted[0] not in stages_taken]:
            places += yield Query(
                f"SELECT * FROM {self.schema}.mop_find_states($1, $2, $3, $4)",
                ("bigint", "integer[]", "integer[]", "text"),
                (run_id, [stage for stage, _ in others], [version for _, version in others], token),
                several=True,
            )
        # weights belong to no segment: their dist_key is 0, the default in mop_make_state_table
        return [
            (
                row["wanted"],
                {**row, "dist_key": self.keys.get(str(row["segment"]), 0), "run_id": run_id, "token": token},
            )
            for row in places
        ]

    def work(self, rows_sql: str) -> Coroutine[tuple[dict[str, Any], bool]]:
        assert self.sent is not None
        if self.sent["sends_rows"]:
            yield Query(rows_sql % {"epochs": self.sent["epochs_sent"]})
        return json.loads((yield from self._at("mop_at_end()"))), self.sent["sends_rows"]

    def score(self, number: int, sums: Sequence[float]) -> Coroutine[Any]:
        return json.loads((yield from self._at("mop_at_score($1, $2)", ("integer", "float8[]"), (number, sums))))

    def save(self, run_id: int, made: Sequence[tuple[int, int, int]], token: str) -> Coroutine[Any]:
        sizes = [0] * len(made)
        for target in {state_table for _, _, state_table in made}:
            numbers = [n for n, (_, _, state_table) in enumerate(made) if state_table == target]
            rows = (
                yield Query(
                    f"SELECT {self.schema}.mop_keep_states($1, $2, $3, $4, $5, $6, $7) AS sizes",
                    ("bigint", "integer[]", "integer[]", "integer", "integer[]", "integer", "text"),
                    (
                        run_id,
                        [made[n][0] for n in numbers],
                        [made[n][1] for n in numbers],
                        target,
                        numbers,
                        self.host_segment,
                        token,
                    ),
                )
            )[0]["sizes"]
            for n, size in zip(numbers, rows):
                sizes[n] = int(size)
        return sizes

    def failed(self) -> None:
        """The transaction ended on the segment, too; the next unit stops a trainer that still works."""


def _wants(models: Iterable[UnitModel], datasets: Sequence[str | None]) -> dict[str, Any]:
    """What a trainer should hold for these models and datasets: see process.Trainer."""
    return {"nets": list({model.net for model in models if model.net}), "datasets": datasets}


def _loading(segment: UnitHeader) -> UnitHeader:
    """The unit that has a trainer keep the rows of a segment."""
    return dataclasses.replace(segment, kind="load", keeps_rows=True)


def put_state(
    schema: str, run_id: int, stage: int, version: int, state_table: int, number: int, part: bytes, token: str
) -> Query:
    """The Query that writes a part (bytes) of a stage's state at a version into a state table."""
    return Query(
        f"SELECT {schema}.mop_put_state($1, $2, $3, $4, $5, $6, $7)",
        ("bigint", "integer", "integer", "integer", "integer", "bytea", "text"),
        (run_id, stage, version, state_table, number, part, token),
    )


# --- on a host segment --------------------------------------------------------------------------------


def at_start(plpy: Any, text: str, look_again: bool) -> str:
    """Lease or start the trainer of this process, unless it runs, within the limits of the calling role.

    `text`: options as JSON, and `wants` (see process.Trainer). Returns JSON: the digests of its compiled models, `nets`.
    """
    holder, options = aggregate.session(plpy), json.loads(text)
    wants = options.pop("wants", None)
    limits = Limits(plpy, quote_identifier(extension_schema(plpy)))
    with aggregate.failures_as_sql(plpy, holder):
        trainer = raising(plpy, holder.start_trainer, _on_own_gpu(plpy, options), limits, look_again, wants)
    return json.dumps({"nets": trainer.nets})


def at_leave(plpy: Any) -> int | None:
    """Give this process's trainer back to the pool, and return its process ID. Returns None, and keeps the trainer, where
    there is no pool to return to."""
    holder = aggregate.session(plpy)
    if holder.trainer is None or not holder.trainer.is_pooled():
        return None
    try:
        pid = holder.trainer.pid
    except TrainerLost:
        pid = None
    holder.give_back()
    return pid


def at_keep(plpy: Any, text: str) -> str | None:
    """See SegmentTrainer._keep, as JSON; None if no trainer runs that was started with the options."""
    holder, request = aggregate.session(plpy), json.loads(text)
    if not _is_there(plpy, holder, request["options"]):
        return None
    keeps = []
    with aggregate.failures_as_sql(plpy, holder):
        for dataset, nbytes, keep in request["segments"]:
            is_kept = holder.holds(dataset, nbytes, keep)
            keeps.append(dataset in holder.running().datasets if is_kept else None)
    return json.dumps(keeps)


def _is_there(plpy: Any, holder: Session, options: Options) -> bool:
    """True where this process has a trainer that was started with these options and waits for a unit."""
    if holder.unit is not None:  # the trainer still works on a failed unit
        holder.stop_trainer()
    return holder.trainer is not None and holder.trainer.alive() and holder.wanted == _on_own_gpu(plpy, options)


def content(plpy: Any) -> int:
    """The number of this process's segment; -1 on the coordinator."""
    return int(plpy.execute("SELECT pg_catalog.current_setting('gp_contentid') AS content")[0]["content"])


def _on_own_gpu(plpy: Any, options: Options) -> Options:
    """A trainer's options, with the number of this segment's GPU on its host if the trainer uses one."""
    if options.get("gpu") is None:
        return options
    return {**options, "gpu": content(plpy) % max(1, settings.gpus())}


def give_objects(plpy: Any, host_segment: int, functions: str, models: str, caller: int) -> None:
    """Send the pickles of models' custom functions to a host segment; only the extension's owner may.

    The pickles come from the object table `functions`: a superuser must have written them, and the role `caller` (an
    OID) must have the right to read it. `models`: JSON, [[compile parameters, digests from object_table.digests], ...].
    """
    db, pickles_by_name = Database(plpy, extension_schema(plpy)), {}
    try:
        with db.pinned_path():
            quoted = object_table.check(db, functions)
            if not db.value(
                "SELECT has_table_privilege($1::oid, $2::regclass, 'SELECT')", ["text", "text"], [str(caller), quoted]
            ):
                raise MopError(f"permission denied for object table {quoted}")
            for compile_params, digests in json.loads(models):
                pickles_by_name.update(
                    object_table.read(db, functions, params.parse_compile_params(compile_params), digests)
                )
        names, pickles = list(pickles_by_name), list(pickles_by_name.values())
        plpy.execute(
            plpy.prepare(
                f"SELECT {db.extension}.mop_at_objects($1, $2) FROM {db.extension}.mop_host_segment "
                f"WHERE dist_key = {int(host_segment)}",
                ["text[]", "bytea[]"],
            ),
            [names, pickles],
        )
        return
    except (MopError, params.ParameterError) as error:
        problem = str(error)
    raise_error(plpy, problem, aggregate.CONFIGURATION_FAILED)


def at_objects(plpy: Any, names: Sequence[str], pickles: Sequence[bytes]) -> bool:
    """Keep the pickles of custom functions for the next unit."""
    aggregate.session(plpy).lent = dict(zip(names, pickles, strict=True))
    return True


def at_begin(plpy: Any, text: str) -> str | None:
    """Send the trainer a unit, whose states follow. Returns JSON, or None if `options` are given and no trainer runs
    that was started with them.

    `keeps_rows`: whether the trainer holds or can keep the unit's rows; `sends_rows`, `epochs_sent`: the rows that it
    needs. `begun`: false if the unit was not sent: several models whose rows cannot be kept are sent one by one.
    """
    holder, message = aggregate.session(plpy), json.loads(text)
    options = message.get("options")
    try:
        request = UnitRequest.from_json(message["unit"])
        fit_params = {unit.fit_params for step in steps_of(request) for unit in step if unit is not None}
    except SpecError as error:
        problem: str | None = str(error)
    else:
        problem = None
    if problem is not None:
        raise_error(plpy, problem, "22023")
    if absent_names := [name for model in request.models for name in model.objects if name not in holder.lent]:
        raise_error(
            plpy,
            f"the custom function {absent_names[0]!r} has not arrived at its segment",
            aggregate.CONFIGURATION_FAILED,
        )
    if options is not None:
        if not _is_there(plpy, holder, options):
            return None
        with aggregate.failures_as_sql(plpy, holder):
            request.keeps_rows = holder.holds(request.dataset, request.nbytes, request.keep)
        if request.kind == "train" and len(request.models) > 1 and not request.keeps_rows:
            holder.lent = {}
            return json.dumps({"begun": False, "keeps_rows": False})
    elif holder.trainer is None:
        raise_error(plpy, "there is no trainer in this process", aggregate.TRAINER_LOST)
    lent, holder.lent = holder.lent, {}
    if (
        any(params.parse_fit_params(fit_text)["callbacks"] for fit_text in fit_params)
        and not (
            plpy.execute(
                "SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) current_user"
            )[0]["rolsuper"]
        )
    ):
        raise_error(plpy, "only a superuser may use callbacks", aggregate.CONFIGURATION_FAILED)
    with aggregate.failures_as_sql(plpy, holder):
        sent = holder.begin(
            request,
            request.models,
            None,
            [{name: lent[name] for name in model.objects} for model in request.models],
            request.then,
        )
    return json.dumps(
        {
            "begun": True,
            "keeps_rows": request.keeps_rows,
            "sends_rows": sent.sends_rows,
            "epochs_sent": sent.epochs_sent,
        }
    )


def at_state(plpy: Any, stage: int, part: bytes | None) -> bool:
    """Send the trainer a part of a state for its unit; returns False for None, a part that does not exist."""
    holder = aggregate.working(plpy)
    if part is None:
        return False
    with aggregate.failures_as_sql(plpy, holder):
        holder.give(stage, part)
    return True


def at_states(plpy: Any, stages: Sequence[int], parts: Sequence[bytes | None]) -> bool:
    """Send the trainer parts of states for its unit, in order."""
    for stage, part in zip(stages, parts, strict=True):
        if not at_state(plpy, stage, part):
            raise_error(plpy, f"a part of the state of stage {stage} is missing", "XX001")
    return True


def at_score(plpy: Any, number: int, sums: Sequence[float]) -> str:
    """The loss and metrics of model `number` of the last evaluation, as JSON, from sums over all rows."""
    holder = aggregate.session(plpy)
    with aggregate.failures_as_sql(plpy, holder):
        return json.dumps(holder.score(number, sums))


def at_save(plpy: Any, number: int) -> Iterator[tuple[int, bytes]]:
    """The parts of the new state of model `number` of the last unit: pairs (position, bytes)."""
    holder = aggregate.session(plpy)
    if holder.trainer is None:
        raise_error(plpy, "there is no trainer in this process", aggregate.TRAINER_LOST)
    with aggregate.failures_as_sql(plpy, holder):
        for position, (_, part) in enumerate(holder.save([number])):
            yield position, part
