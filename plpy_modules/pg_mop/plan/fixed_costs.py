"""Fixed costs as the log of earlier runs tells them: how long a run takes to start and to end, and what commands cost besides
their computation. Pure Python."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pg_mop.plan.estimates import CommandCosts, FixedCosts
from pg_mop.plan.least_squares import fit

Row = Mapping[str, Any]

APART = 2e-4  # seconds between two units of a session that are of two commands: those of a chain follow at once
NEXT = 0.1  # seconds: a longer gap is idle time
LEAST_COMMANDS = 5  # that tell what a command costs, and units that tell what an evaluation does
LARGEST = 3.0  # median seconds of a row: a unit that took more was disturbed, and counts as this
MEGABYTE = 1 << 20


def learned(
    runs: Sequence[Row], units: Iterable[Row], usual: FixedCosts | None = None, warm: bool = False
) -> FixedCosts:
    """The fixed costs by the log of some runs, latest first. What the log does not tell stays as `usual`.

    `runs`: of each run `run_id`, `start` (seconds to its first unit), `end` (from its last unit), and `alike`: it had nets of
    the present plan; where these tell enough, the others count for nothing else. `units`: of these runs `run_id`, `session`,
    `server` (None: the coordinator's own), `model` (equal for the units of a chain that train one model), `kind`, `rows`,
    `passes` over them, `began`, `ended` and `train` (seconds), `bytes` (of the state) and `compiled`. `warm`: trainers are
    ready, so that the run will start as the quickest of these.
    """
    usual = usual or FixedCosts()
    if not runs:
        return usual
    starts = [max(0.0, run["start"]) for run in runs]
    found: dict[str, Any] = {
        "start": min(starts) if warm else statistics.median(starts),
        "end": statistics.median(max(0.0, run["end"]) for run in runs),
        "measured": len(runs),
    }
    every = list(units)
    alike = {run["run_id"] for run in runs if run.get("alike", True)}
    # (few units tell little: those of other nets count then, too)
    some = [[unit for unit in every if unit["run_id"] in alike], every]
    evaluation = next((value for own in some if (value := _evaluation(own)) is not None), None)
    if evaluation is not None:
        found["evaluation"] = evaluation
    costs: dict[tuple[str, str], CommandCosts] = {}  # by place and kind
    for own in some:
        for key, commands in _by_place(own).items():
            if key not in costs and len(commands) >= LEAST_COMMANDS:
                costs[key] = _costs(commands, usual.commands(key[1]))
    for name, kind in (("training", "train"), ("evaluating", "evaluate")):
        if ("", kind) in costs:
            found[name] = costs["", kind]
    found["places"] = {
        place: (
            costs.get((place, "train"), found.get("training", usual.training)),
            costs.get((place, "evaluate"), found.get("evaluating", usual.evaluating)),
        )
        for place in sorted({place for place, _ in costs} - {""})
    }
    return dataclasses.replace(usual, **found)


@dataclasses.dataclass
class _Command:
    """A command of a session as the log tells it: its units, and the seconds until the next command of that session (None:
    there was none)."""

    place: str
    kind: str
    began: float
    ended: float
    units: list[Row] = dataclasses.field(default_factory=list)
    gap: float | None = None

    @property
    def compiled(self) -> bool:
        return any(unit["compiled"] for unit in self.units)

    @property
    def besides(self) -> float:
        """Seconds besides computation, from its first statement to its last."""
        return max(0.0, self.ended - self.began - sum(unit["train"] or 0.0 for unit in self.units))

    @property
    def states(self) -> list[int]:
        """The bytes of the states of its models: a chain reads and writes the state of each once."""
        return [unit.get("bytes") or 0 for unit in {unit["model"]: unit for unit in self.units}.values()]


def _commands(units: Iterable[Row]) -> Iterator[_Command]:
    """The commands of sessions, from the log of their units."""
    by_session: dict[Any, list[Row]] = {}
    for unit in units:
        by_session.setdefault((unit["run_id"], unit["session"]), []).append(unit)
    for own in by_session.values():
        own.sort(key=lambda unit: (unit["began"], unit["ended"]))
        now: _Command | None = None
        for unit in own:
            if now is None or unit["began"] - now.ended >= APART or unit["kind"] != now.kind:
                following = _Command(unit.get("server") or "", unit["kind"], unit["began"], unit["ended"])
                if now is not None:
                    now.gap = unit["began"] - now.ended
                    yield now
                now = following
            now.units.append(unit)
            now.ended = max(now.ended, unit["ended"])
        if now is not None:
            yield now


def _by_place(units: Iterable[Row]) -> dict[tuple[str, str], list[_Command]]:
    """{(place, kind): the commands that compiled nothing}."""
    found: dict[tuple[str, str], list[_Command]] = {}
    for command in _commands(units):
        if not command.compiled:
            found.setdefault((command.place, command.kind), []).append(command)
    return found


def _costs(commands: Sequence[_Command], usual: CommandCosts) -> CommandCosts:
    """What commands of one kind at one place cost: by least squares, and the mean of what lies between two commands."""
    rows = [(1.0, len(one.states), len(one.units), sum(one.states) / MEGABYTE) for one in commands]
    took = [one.besides for one in commands]
    found = fit(rows, took)
    # (a command that was disturbed has no part in the fit, but such commands will be disturbed again)
    fitted = [sum(a * c for a, c in zip(row, found)) for row in rows]
    more = sum(min(t, LARGEST * f) for t, f in zip(took, fitted)) / max(1e-9, sum(fitted))
    command, state, unit, megabyte = (c * more for c in found)
    between = [one.gap for one in commands if one.gap is not None and one.gap < NEXT]
    turn = statistics.mean(between) if between else usual.command / 2
    return CommandCosts(command + turn, unit, state, megabyte if any(row[3] for row in rows) else usual.megabyte)


def _evaluation(units: Sequence[Row]) -> float | None:
    """Seconds of an evaluated row, in seconds of a trained row, by the sums over units that compiled nothing."""
    seconds: dict[str, list[tuple[float, int]]] = {"train": [], "evaluate": []}
    for unit in units:
        if unit["rows"] and unit["train"] and not unit["compiled"]:
            seconds[unit["kind"]].append((unit["train"], unit["rows"] * unit["passes"]))
    if min(map(len, seconds.values())) < LEAST_COMMANDS:
        return None
    of_row: dict[str, float] = {}
    for kind, own in seconds.items():
        usual = statistics.median(took / rows for took, rows in own)
        of_row[kind] = sum(min(took, LARGEST * usual * rows) for took, rows in own) / sum(rows for _, rows in own)
    return min(10.0, of_row["evaluate"] / of_row["train"])
