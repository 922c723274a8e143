"""Instructions to the executor, as values.

The methods of a run controller, and of the parts of the event loop that decide, are generators: each yields an instruction, and
is sent the answer. So they decide, the executor acts, and they know neither the executor nor one another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pg_mop.plan.configuration import Configuration
    from pg_mop.run.attempt import Attempt, Copied, CopyFailed


@dataclass(frozen=True)
class Ask:
    """Train a configuration up to iteration `until`, and evaluate it after the iterations `evaluated`. `new`: the
    catalog does not have the configuration yet. Answer: (stages to be done, [(mst_key, stage), ...] that are new)."""

    configuration: Configuration
    until: int
    evaluated: Collection[int]
    new: bool = False


@dataclass(frozen=True)
class Register:
    """Write a configuration that cannot be trained into the catalog."""

    configuration: Configuration


@dataclass(frozen=True)
class Withdraw:
    """Do no more for a configuration than the iteration that it is in, or than `until`. `beside`: the mst_keys of trials
    that stop with it, of which the furthest decides the iteration. Answer: the stages given up."""

    mst_key: int
    reason: str | None
    until: int | None = None
    beside: Sequence[int] = ()


@dataclass(frozen=True)
class Pin:
    """Keep the state of a stage (number) to the end of the run, `instead` of another stage's, which others may need."""

    stage: int
    instead: int | None = None


@dataclass(frozen=True)
class GiveUp:
    """A configuration has failed, for this reason; `blame`: 'configuration', or 'infrastructure' (mop_resume tries again)."""

    mst_key: int
    message: str
    blame: str = "infrastructure"


@dataclass(frozen=True)
class HasState:
    """Answer: whether the state of a stage (number) exists on any server."""

    stage: int


@dataclass(frozen=True)
class Fetch:
    """Answer: the state (bytes) of a stage (number) that is trained; None where it does not exist on any server."""

    stage: int


@dataclass(frozen=True)
class Invite:
    """A server (name) is to join the run; `by`: the role that asks for it."""

    server: str
    by: str


# --- of the parts of the event loop ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckServers:
    """Look whether the other servers answer: this takes time, and one of them may hang."""


@dataclass(frozen=True)
class GiveServerUp:
    """Go on without a server (name), if others have copies of all that it holds (Run.can_do_without)."""

    server: str
    why: str


@dataclass(frozen=True)
class LeaveServer:
    """A server (name) has been given up: no session works there any more, and its units are to be done on others."""

    server: str
    why: str


@dataclass(frozen=True)
class Count:
    """An attempt is committed, with the report of another server or none. Answer: the stages that have ended by it."""

    attempt: Attempt
    report: Any


@dataclass(frozen=True)
class CountCopied:
    """The state of an attempt has been copied, or could not be. Answer: the stages that have ended by it."""

    attempt: Attempt
    event: Copied | CopyFailed


@dataclass(frozen=True)
class FailStage:
    """The stage of an attempt's unit cannot be trained: its configurations fail. `blame`: as in GiveUp."""

    attempt: Attempt
    message: str
    blame: str


Instruction = (
    Ask
    | Register
    | Withdraw
    | Pin
    | GiveUp
    | HasState
    | Fetch
    | Invite
    | CheckServers
    | GiveServerUp
    | LeaveServer
    | Count
    | CountCopied
    | FailStage
)
Instructions = Generator[Instruction, Any, Any]


def perform(instructions: Instructions, do: Callable[[Instruction], Any]) -> Any:
    """Carry out the instructions of a generator by `do(instruction)`, and return what the generator returns."""
    try:
        instruction = next(instructions)
        while True:
            try:
                answer = do(instruction)
            except BaseException as error:  # the generator may handle it
                instruction = instructions.throw(error)
            else:
                instruction = instructions.send(answer)
    except StopIteration as end:
        return end.value
