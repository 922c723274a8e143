"""The requests of a run controller to the executor.

A controller's methods are generators: each yields a request, and is sent the answer. So a controller decides, the
executor acts, and the controller does not know the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ask:
    """Train a configuration up to iteration `until`, and evaluate it after the iterations `evaluated`. `new`: the
    catalog does not have the configuration yet. Answer: (stages to be done, [(mst_key, stage), ...] that are new)."""

    configuration: dict[str, Any]
    until: int
    evaluated: Collection[int]
    new: bool = False


@dataclass(frozen=True)
class Register:
    """Write a configuration that cannot be trained into the catalog."""

    configuration: dict[str, Any]


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


Request = Ask | Register | Withdraw | Pin | GiveUp | HasState | Fetch | Invite
Steps = Generator[Request, Any, Any]


def perform(steps: Steps, do: Callable[[Request], Any]) -> Any:
    """Carry out the requests of a controller's generator by `do(request)`, and return what the generator returns."""
    try:
        request = next(steps)
        while True:
            try:
                answer = do(request)
            except BaseException as error:  # the controller may handle it
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        return end.value
