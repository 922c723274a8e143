"""The trainer of a unit: in the worker session's own process, or in the session's process on a segment of Greenplum.

Both classes have the methods of :class:`LocalTrainer`, which are coroutines of queries (backend/queries.py).
:class:`SegmentTrainer` yields statements that run on the segment and call the functions at the end of this module.
"""

import itertools
import json

import mop_udf
from mop_udf import aggregate, fork_server_client, params
from mop_udf.channel import PART_BYTES
from mop_udf.errors import raise_error
from pg_mop.backend import object_table, settings
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import raising
from pg_mop.backend.limits import Limits
from pg_mop.backend.queries import Query
from pg_mop.backend.quoting import quote_identifier

SMALL = 256 << 10  # bytes of a small state: several of them are written and sent with one statement


def trainer_at(holder, schema, host_segment, keys=None, functions=None):
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


def expect(db, options=None):
    """Have the fork server import Keras while the user prepares a call that trains; without effect where it has.

    Called where data or architectures are being prepared. The later call meets any problem again and reports it.
    `options`: from settings.load, if the caller has them.
    """
    try:
        options = options or settings.load(db, check_names=False)
    except MopError:
        return
    if options["fork_server_idle_timeout"] and not options["trainers"] and not db.has_segments:
        fork_server_client.expect(mop_udf.home, options["keras_backend"], options["fork_server_idle_timeout"])


class LocalTrainer:
    """The trainer of this process."""

    def __init__(self, holder, schema):
        """`holder`: the mop_udf.aggregate.Session."""
        self.holder, self.schema = holder, schema

    def start(self, options, look_again=False, wants=None):
        """Lease or start the trainer, unless the session has it, within the limits of the calling role; `wants`: see
        process.Trainer."""
        limits = Limits(self.holder.plpy, self.schema)
        raising(self.holder.plpy, self.holder.start_trainer, options, limits, look_again, wants)
        yield from ()

    def begin(self, options, unit, models, objects):
        """Start the trainer, unless it runs; return whether it holds or can keep the rows of a unit (as for `give`)."""
        yield from self.start(options)
        return self.keeps(unit)

    def keeps(self, unit):
        """True where the trainer holds or can keep the rows of a unit; it has started."""
        return self.holder.holds(unit["dataset"], unit["nbytes"], unit["keep"])

    def load(self, unit, rows_sql):
        """Send the rows of a unit that the trainer can keep, unless it holds them; return whether they were sent."""
        if unit["dataset"] in self.holder.trainer.datasets:
            return False
        self.holder.begin({**unit, "kind": "load", "keeps_rows": True}, [], (), [])
        yield Query(rows_sql % {"epochs": 1})
        return True

    def states(self, run_id, versions, token, taken):
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

    def give(self, unit, models, states, objects):
        """Send the trainer a unit, with the states that `states` returned: (stage, part)."""
        self.holder.begin(unit, models, states, objects)
        yield from ()

    def work(self, rows_sql):
        """Send the rows unless the trainer holds them, and wait: (report as a dict, whether rows were sent)."""
        sent = self.holder.unit
        if not sent["sends_rows"]:
            return self.holder.end(), False
        rows = yield Query(rows_sql % {"epochs": sent["epochs_sent"]})
        return json.loads(rows[0]["report"]), True

    def score(self, number, sums):
        """The loss and metrics of model `number` of the last evaluation, from sums over all rows."""
        yield from ()
        return self.holder.score(number, sums)

    def save(self, run_id, made, token):
        """Write the new states of the last unit's models, `made`: [(stage, version, state_table), ...]; return their bytes."""
        sizes, small = [0] * len(made), {}
        for number, parts in itertools.groupby(self.holder.save(list(range(len(made)))), key=lambda item: item[0]):
            stage, version, state_table = made[number]
            for position, (_, part) in enumerate(parts):
                sizes[number] += len(part)
                if position or len(part) > SMALL:
                    yield put_state(self.schema, run_id, stage, version, state_table, position, part, token)
                else:
                    small.setdefault(state_table, []).append((stage, version, part))
        for state_table, states in small.items():
            stages, versions, parts = map(list, zip(*states))
            yield Query(
                f"SELECT {self.schema}.mop_put_states($1, $2, $3, $4, $5, $6)",
                ("bigint", "integer[]", "integer[]", "integer", "bytea[]", "text"),
                (run_id, stages, versions, state_table, parts, token),
            )
        return sizes

    def failed(self):
        """The unit failed: stop the trainer if it still works on the unit, since no one will read its answer."""
        if self.holder.unit is not None:
            self.holder.stop_trainer()


class SegmentTrainer:
    """The trainer of this session's process on a host segment."""

    def __init__(self, holder, schema, host_segment, keys, functions):
        self.holder, self.schema, self.host_segment, self.keys = holder, schema, int(host_segment), keys
        self.functions = functions
        self.sent = None  # the answer of at_begin to the current unit

    def _at(self, call, types=(), values=()):
        """The result of one of our functions on the host segment."""
        rows = yield Query(
            f"SELECT {self.schema}.{call} AS answer FROM {self.schema}.mop_host_segment "
            f"WHERE dist_key = {self.host_segment}",
            types,
            values,
        )
        if not rows:
            raise_error(self.holder.plpy, f"there is no host segment {self.host_segment}", "22023")
        return rows[0]["answer"]

    def start(self, options, look_again=False, wants=None):
        yield Query(f"SELECT {self.schema}.mop_share_host($1)", ("integer",), (self.host_segment,))
        yield from self._at("mop_at_start($1, $2)", ("text", "boolean"), (json.dumps(options), look_again))

    def begin(self, options, unit, models, objects):
        yield from self._lend(models, objects)
        self.sent = yield from self._hand(unit, models, objects, options)
        if self.sent is None:
            yield from self.start(options)
            self.sent = yield from self._hand(unit, models, objects, options)
        return self.sent["keeps_rows"]

    def _lend(self, models, objects):
        """Send the models' custom functions to the host segment."""
        if any(objects):
            yield Query(
                f"SELECT {self.schema}.mop_give_objects($1, $2, $3)",
                ("integer", "text", "text"),
                (
                    self.host_segment,
                    self.functions,
                    json.dumps(
                        [[model["compile_params"], model["functions"]] for model, own in zip(models, objects) if own]
                    ),
                ),
            )

    def _hand(self, unit, models, objects, options=None):
        """Send a unit to the trainer; return the answer of at_begin."""
        text = json.dumps(
            {"options": options, "unit": unit, "models": models, "objects": [list(own) for own in objects]}
        )
        return json.loads((yield from self._at("mop_at_begin($1)", ("text",), (text,))) or "null")

    def give(self, unit, models, states, objects):
        if self.sent["begun"]:
            self.sent["begun"] = False  # (further models of the unit are sent separately)
        else:
            yield from self._lend(models, objects)
            self.sent = {**(yield from self._hand(unit, models, objects)), "begun": False}
        states = list(states)
        given = yield from self._give_together(
            [(wanted, state) for wanted, state in states if (state["bytes"] or SMALL + 1) <= SMALL]
        )
        for wanted, state in states:
            if wanted in given:
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

    def _give_together(self, states):
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

    def states(self, run_id, versions, token, taken):
        """The location of each state. The trainer fetches the state from there directly."""
        own = [
            stage
            for stage, version in versions
            if stage in taken and taken[stage]["state_table"] is not None and taken[stage]["version"] == version
        ]
        found = [{**taken[stage], "wanted": stage, "segment": taken[stage]["made_on"]} for stage in own]
        if others := [wanted for wanted in versions if wanted[0] not in own]:
            found += yield Query(
                f"SELECT * FROM {self.schema}.mop_find_states($1, $2, $3, $4)",
                ("bigint", "integer[]", "integer[]", "text"),
                (run_id, [stage for stage, _ in others], [version for _, version in others], token),
                several=True,
            )
        # (weights belong to no segment: their dist_key is 0, the default in mop_make_state_table)
        return [
            (
                row["wanted"],
                {**row, "dist_key": self.keys.get(str(row["segment"]), 0), "run_id": run_id, "token": token},
            )
            for row in found
        ]

    def work(self, rows_sql):
        if self.sent["sends_rows"]:
            yield Query(rows_sql % {"epochs": self.sent["epochs_sent"]})
        return json.loads((yield from self._at("mop_at_end()"))), self.sent["sends_rows"]

    def score(self, number, sums):
        return json.loads((yield from self._at("mop_at_score($1, $2)", ("integer", "float8[]"), (number, sums))))

    def save(self, run_id, made, token):
        sizes = [0] * len(made)
        for target in {state_table for _, _, state_table in made}:
            own = [n for n, (_, _, state_table) in enumerate(made) if state_table == target]
            kept = (
                yield Query(
                    f"SELECT {self.schema}.mop_keep_states($1, $2, $3, $4, $5, $6, $7) AS sizes",
                    ("bigint", "integer[]", "integer[]", "integer", "integer[]", "integer", "text"),
                    (
                        run_id,
                        [made[n][0] for n in own],
                        [made[n][1] for n in own],
                        target,
                        own,
                        self.host_segment,
                        token,
                    ),
                )
            )[0]["sizes"]
            for n, size in zip(own, kept):
                sizes[n] = int(size)
        return sizes

    def failed(self):
        """The transaction ended on the segment, too; the next unit stops a trainer that still works."""


def put_state(schema, run_id, stage, version, state_table, number, part, token):
    """The Query that writes a part (bytes) of a stage's state at a version into a state table."""
    return Query(
        f"SELECT {schema}.mop_put_state($1, $2, $3, $4, $5, $6, $7)",
        ("bigint", "integer", "integer", "integer", "integer", "bytea", "text"),
        (run_id, stage, version, state_table, number, part, token),
    )


# --- on a host segment --------------------------------------------------------------------------------


def at_start(plpy, options, look_again):
    """Start the trainer of this process, unless it runs, within the limits of the calling role."""
    holder = aggregate.session(plpy)
    limits = Limits(plpy, quote_identifier(extension_schema(plpy)))
    with aggregate.failures_as_sql(plpy, holder):
        raising(plpy, holder.start_trainer, _on_own_gpu(plpy, json.loads(options)), limits, look_again)
    return True


def content(plpy):
    """The number of this process's segment; -1 on the coordinator."""
    return int(plpy.execute("SELECT pg_catalog.current_setting('gp_contentid') AS content")[0]["content"])


def _on_own_gpu(plpy, options):
    """A trainer's options, with the number of this segment's GPU on its host if the trainer uses one."""
    if options.get("gpu") is None:
        return options
    return {**options, "gpu": content(plpy) % max(1, settings.gpus())}


def give_objects(plpy, host_segment, functions, models, caller):
    """Send the pickles of models' custom functions to a host segment; only the extension's owner may.

    The pickles come from the object table `functions`: a superuser must have written them, and the role `caller` (an
    OID) must have the right to read it. `models`: JSON, [[compile parameters, digests from object_table.digests], ...].
    """
    db, found = Database(plpy, extension_schema(plpy)), {}
    try:
        with db.pinned_path():
            quoted = object_table.check(db, functions)
            if not db.value(
                "SELECT has_table_privilege($1::oid, $2::regclass, 'SELECT')", ["text", "text"], [str(caller), quoted]
            ):
                raise MopError(f"permission denied for object table {quoted}")
            for compile_params, digests in json.loads(models):
                found.update(object_table.read(db, functions, params.parse_compile_params(compile_params), digests))
        names, pickles = list(found), list(found.values())
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


def at_objects(plpy, names, pickles):
    """Keep the pickles of custom functions for the next unit."""
    aggregate.session(plpy).lent = dict(zip(names, pickles, strict=True))
    return True


def at_begin(plpy, text):
    """Send the trainer a unit, whose states follow. Returns JSON, or None if `options` are given and no trainer runs
    that was started with them.

    `keeps_rows`: whether the trainer holds or can keep the unit's rows; `sends_rows`, `epochs_sent`: the rows that it
    needs. `begun`: false if the unit was not sent: several models whose rows cannot be kept are sent one by one.
    """
    holder, asked = aggregate.session(plpy), json.loads(text)
    unit, models, options = asked["unit"], asked["models"], asked.get("options")
    if missing := [name for own in asked["objects"] for name in own if name not in holder.lent]:
        raise_error(
            plpy, f"the custom function {missing[0]!r} has not arrived at its segment", aggregate.CONFIGURATION_FAILED
        )
    if options is not None:
        if holder.unit is not None:  # the trainer still works on a failed unit
            holder.stop_trainer()
        if holder.trainer is None or not holder.trainer.alive() or holder.wanted != _on_own_gpu(plpy, options):
            return None
        with aggregate.failures_as_sql(plpy, holder):
            unit["keeps_rows"] = holder.holds(unit["dataset"], unit["nbytes"], unit["keep"])
        if unit["kind"] == "train" and len(models) > 1 and not unit["keeps_rows"]:
            holder.lent = {}
            return json.dumps({"begun": False, "keeps_rows": False})
    elif holder.trainer is None:
        raise_error(plpy, "there is no trainer in this process", aggregate.TRAINER_LOST)
    lent, holder.lent = holder.lent, {}
    # (a model inherits missing parameters from the unit)
    if (
        any(params.parse_fit_params({**unit, **model}.get("fit_params"))["callbacks"] for model in models)
        and not (
            plpy.execute(
                "SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) current_user"
            )[0]["rolsuper"]
        )
    ):
        raise_error(plpy, "only a superuser may use callbacks", aggregate.CONFIGURATION_FAILED)
    with aggregate.failures_as_sql(plpy, holder):
        holder.begin(
            unit,
            models,
            None,
            [{name: lent[name] for name in own} for own, _ in zip(asked["objects"], models, strict=True)],
        )
    return json.dumps(
        {
            "begun": True,
            "keeps_rows": unit["keeps_rows"],
            **{name: holder.unit[name] for name in ("sends_rows", "epochs_sent")},
        }
    )


def at_state(plpy, stage, part):
    """Send the trainer a part of a state for its unit; returns False for None, a part that does not exist."""
    holder = aggregate.working(plpy)
    if part is None:
        return False
    with aggregate.failures_as_sql(plpy, holder):
        holder.give(stage, part)
    return True


def at_states(plpy, stages, parts):
    """Send the trainer parts of states for its unit, in order."""
    for stage, part in zip(stages, parts, strict=True):
        if not at_state(plpy, stage, part):
            raise_error(plpy, f"a part of the state of stage {stage} is missing", "XX001")
    return True


def at_score(plpy, number, sums):
    """The loss and metrics of model `number` of the last evaluation, as JSON, from sums over all rows."""
    holder = aggregate.session(plpy)
    with aggregate.failures_as_sql(plpy, holder):
        return json.dumps(holder.score(number, sums))


def at_save(plpy, number):
    """The parts of the new state of model `number` of the last unit: pairs (position, bytes)."""
    holder = aggregate.session(plpy)
    if holder.trainer is None:
        raise_error(plpy, "there is no trainer in this process", aggregate.TRAINER_LOST)
    with aggregate.failures_as_sql(plpy, holder):
        for position, (_, part) in enumerate(holder.save([number])):
            yield position, part
