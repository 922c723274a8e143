"""The members of a model space as dimensions of a search. Pure Python."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pg_mop.search.dimension import Coordinate, Dimension, Place
from pg_mop.spaces import Member, ModelSpace
from pg_mop.spaces.inheritance import inheritance
from pg_mop.spaces.super_net import SuperNet, super_net

if TYPE_CHECKING:
    from pg_mop.spaces.choices import Point as ChoicePoint

FIRST_ID = 2**30  # model_ids of members begin here
MOST_KEPT = 20_000  # members that are kept in memory


class ModelChoices:
    """A model space in a search: one dimension for the base model, one for each choice point.

    A member's model_id is a digest of its architecture, so that equal members of any search share stages and start from equal
    weights; a taken number is replaced by the next one.
    """

    def __init__(self, space: ModelSpace, taken: Container[int] = ()) -> None:
        """`taken`: model_ids that no member may have."""
        self.space, self.taken = space, taken
        self.base = Dimension("model", "model", [planned.base.model_id for planned in space.bases])
        self.by_point: dict[ChoicePoint, Dimension] = {
            point: Dimension(f"model {model_id}: {point.name}", "model", range(len(point.options)))
            for model_id in self.base.choices
            for point in space.points(model_id)
        }
        self._points = {dimension.name: point for point, dimension in self.by_point.items()}
        self.by_id: dict[int, Member] = {}
        self._places: dict[int, Place] = {}  # model_id -> its coordinates
        self._ids: dict[tuple[Any, ...], int | None] = {}  # coordinates -> model_id; None: a misfit
        self.misfits: dict[str, int] = {}  # why members did not fit -> how many
        self.missed = 0  # how many in all
        self.ended = False  # the grid has ended before its last member, after very many misfits
        self._drafts = False
        self._super_nets: dict[int, SuperNet] | None = None

    @property
    def size(self) -> int:
        """The number of members."""
        return self.space.size

    @property
    def dimensions(self) -> list[Dimension]:
        """All dimensions but that of the base model."""
        return list(self.by_point.values())

    @property
    def most_open(self) -> int:
        """The most dimensions of a member with several values."""
        return self.base.open + max(
            sum(self.by_point[point].open for point in self.space.points(model_id)) for model_id in self.base.choices
        )

    def walk(self, choose: Callable[[Dimension], Coordinate], place: Place) -> None:
        """Add to a point, which has the base model, the coordinates that `choose` gives for the open dimensions."""
        model_id = self.base.value(place[self.base.name])

        def chosen(point: ChoicePoint) -> int:
            dimension = self.by_point[point]
            place[dimension.name] = choose(dimension)
            return place[dimension.name]

        self.space.walk(model_id, chosen)

    def places(self) -> Iterator[Place]:
        """The coordinates of all members, by number."""
        for at, planned in enumerate(self.space.bases):
            names = {point.name: self.by_point[point].name for point in self.space.points(planned.base.model_id)}
            for chosen in planned.variations.choices.all():
                yield {self.base.name: at, **{names[name]: option for name, option in chosen.items()}}

    def own(self, place: Mapping[str, Coordinate]) -> Place:
        """The coordinates of a point that belong to the member."""
        model_id = self.base.value(place[self.base.name])
        names = [self.base.name, *(self.by_point[point].name for point in self.space.points(model_id))]
        return {name: place[name] for name in names if name in place}

    def model_id(self, place: Mapping[str, Coordinate]) -> int | None:
        """The model_id of the member at a point; None where it does not fit together."""
        self.space.check()
        own = self.own(place)
        key = tuple(own.items())
        if self._drafts:
            number = -1 - _digest(repr(key)) % FIRST_ID
            self._places.setdefault(number, own)
            return number
        if key not in self._ids:
            if len(self._ids) >= MOST_KEPT:  # misfits alone may be forgotten
                self._ids = {each: number for each, number in self._ids.items() if number is not None}
            self._ids[key] = self._number(self._member(own), own)
        return self._ids[key]

    @contextlib.contextmanager
    def drafts(self) -> Iterator[None]:
        """Within it no member is made: `model_id` gives a draft's number, which is negative, for every point. EXPLAIN counts
        trials by the thousand, and looks at the models of a few (`member`)."""
        before, self._drafts = self._drafts, True
        try:
            yield
        finally:
            self._drafts = before

    def member(self, model_id: int | None) -> tuple[int, Member] | None:
        """(model_id, member) of a member that was proposed, or of a draft, which is made now; None where there is none, and
        where a draft does not fit together."""
        if model_id is not None and model_id < 0 and model_id in self._places:
            model_id = self.model_id(self._places[model_id])
        return None if model_id is None or model_id not in self.by_id else (model_id, self.by_id[model_id])

    def super_nets(self) -> dict[int, SuperNet]:
        """{model_id: super-net} of the base models. Raises SpaceError where the members of one cannot be trained as one net."""
        if self._super_nets is None:
            nets: dict[int, SuperNet] = {}
            for model_id in self.base.choices:
                net = super_net(self.space, model_id)
                number = FIRST_ID + _digest(f"super-net {net.architecture}") % FIRST_ID
                while number in self.taken or number in self.by_id or number in nets:
                    number = FIRST_ID + (number + 1) % FIRST_ID
                nets[number] = net
            self._super_nets = nets
        return self._super_nets

    def net(self, model_id: int | None) -> SuperNet | None:
        """The super-net of a model_id, if one has been made; None for any other."""
        return None if model_id is None else (self._super_nets or {}).get(model_id)

    def _member(self, own: Place) -> Member:
        model_id = self.base.value(own[self.base.name])
        chosen = {
            point.name: own[self.by_point[point].name]
            for point in self.space.points(model_id)
            if self.by_point[point].name in own
        }
        return self.space.of_choices(model_id, chosen)

    def _number(self, member: Member, own: Place) -> int | None:
        if member.architecture is None:
            reason = member.misfit or ""
            self.missed += 1
            self.misfits[reason] = self.misfits.get(reason, 0) + 1
            return None
        number = FIRST_ID + _digest(member.architecture) % FIRST_ID
        while (
            number in self.taken
            or number in (self._super_nets or ())
            or number in self.by_id
            and self.by_id[number].architecture != member.architecture
        ):
            number = FIRST_ID + (number + 1) % FIRST_ID
        if number not in self.by_id:  # (of two choices with equal architectures, the first counts)
            self.by_id[number], self._places[number] = member, own
        return number

    def locate(self, model_id: int) -> Place | None:
        """The coordinates of a member that was proposed; None for any other model_id."""
        return self._places.get(model_id)

    def remember(self, model_id: int, base: int, choices: Mapping[str, Any]) -> None:
        """Let `locate` find a member of an earlier search by its model_id, if it is one of this space, too.

        `choices`: {choice point: option}.
        """
        if base not in self.base.choices:
            return
        place: Place = {self.base.name: self.base.choices.index(base)}
        for point in self.space.points(base):
            if point.parent is None or place.get(self.by_point[point.parent].name) in point.when:
                options = list(point.options)
                if point.name not in choices or choices[point.name] not in options:
                    return
                place[self.by_point[point].name] = options.index(choices[point.name])
        if self.model_id(place) not in (None, model_id):
            return
        self._places.setdefault(model_id, place)

    def inherits(self, child: int | None, parent: int | None) -> bool:
        """Whether a member fits together, differs from another one, and inherits weights of it. Of drafts, only the first two
        are known."""
        if child is None or parent is None or child == parent:
            return False
        if child < 0 or parent < 0:
            return True
        texts = [self.by_id[one].architecture or "{}" for one in (parent, child)]
        return bool(inheritance(*map(json.loads, texts)).layers)

    def told(self, name: str, coordinate: Coordinate) -> tuple[str, Any] | None:
        """(choice point, option) of a coordinate; None for a dimension of another kind."""
        if name == self.base.name:
            return "base model", self.base.value(coordinate)
        point = self._points.get(name)
        return None if point is None else (point.name, point.options[coordinate])

    def describe(self, model_id: int) -> dict[str, Any] | None:
        """What the log and the output tables tell of a member: its number, base model, choices and primitives."""
        member = self.by_id.get(model_id)
        if member is None:
            return None
        return {
            "member": str(member.number),
            "base": member.model_id,
            "choices": dict(member.choices),
            "primitives": list(member.record),
        }


def _digest(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)
