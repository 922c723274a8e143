"""Mutators on a base model: which layers each matches, the choice points that follow, and the steps that make a member.

Mutators act one after the other: a later one matches what earlier ones have made. So a value that is chosen before a `repeat`
is that of all copies, and one after it is chosen for each copy. All matches are found once, before any member is made: in the
graph in which every choice adds all the layers that it can.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mop_udf.architecture.architecture import ArchitectureError
from pg_mop.plan.arguments import ARGUMENTS, EVERYWHERE, knows
from pg_mop.plan.shapes import Misfit
from pg_mop.spaces.cells import Cell
from pg_mop.spaces.choices import ALWAYS, Chosen, Condition, Point, Points, either, opened
from pg_mop.spaces.custom import NONE, CustomLayers
from pg_mop.spaces.graph import LISTS, Graph
from pg_mop.spaces.reading import MOST_OPTIONS, Mutator, SpaceError, checked_layer
from pg_mop.spaces.steps import Change, MatchedLayer, Slot, inserting, lead, put_beside, replacing

MOST_POINTS = 2000  # of a base model
MOST_LAYERS = 2000  # of a member
MOST_SLOTS = 20_000  # layers that members may have, over all choices
MOST_DEPTH = 100  # of points, each open for options of the one before


class Variations:
    """The choice points and steps of a base model under mutators. `matched`: numbers of the mutators that match a layer."""

    def __init__(
        self,
        base: Graph,
        model_id: int,
        mutators: Sequence[Mutator],
        check: Callable[[], None] = lambda: None,
        custom: CustomLayers = NONE,
    ) -> None:
        """`base`: its graph, which is changed; `check`: called for each layer that a mutator changes; `custom`: the layers with
        code that it may have. Raises SpaceError."""
        self.check, self.custom = check, custom
        self._numbers: dict[str, int] = {}  # a name that was wanted -> the last number that it got
        self.graph, self.model_id = base, model_id
        self.points: list[Point] = []
        self.steps: list[Change] = []
        self.matched: set[int] = set()
        self.names = set(base.layers)
        self.taken: set[str] = set()  # names of points
        self._checked: dict[tuple[int, str], list[Any]] = {}  # (number of a mutator, class) -> its values
        self.shown_at: dict[str, str] = {}  # name of a point -> the layer of the base model where it is shown
        self.slots = [Slot(name, base.layers[name], ALWAYS, name) for name in _order(base) if base.is_layer(name)]
        for mutator in mutators:
            if not mutator.bases or model_id in mutator.bases:
                try:
                    self._apply(mutator)
                except Misfit as error:
                    raise SpaceError(f"mutator {mutator.number} ({mutator.change}): {error}") from None
        self.choices = Points(self.points)

    # --- matching ------------------------------------------------------------------------------------
    def _apply(self, mutator: Mutator) -> None:
        self.check()
        targets = self._targets(mutator, mutator.match)
        if not targets:
            return
        self.matched.add(mutator.number)
        own: Callable[[Mutator, list[MatchedLayer]], None] = getattr(self, f"_{mutator.change}")
        self._check_growth(mutator, targets)
        if mutator.together:
            own(mutator, targets)
            self._check_size()
            return
        for name in [target.name for target in targets]:
            self.check()
            # (what was done to the one before may have changed the next one)
            slots = [slot for slot in self.slots if slot.name == name and mutator.match.fits(name, slot.class_name)]
            if slots:
                own(mutator, [self._target(mutator, name, slots)])
                self._check_size()

    def _check_growth(self, mutator: Mutator, targets: Sequence[MatchedLayer]) -> None:
        """Raises SpaceError, before any work, where a mutator's layers make a space too large."""
        if mutator.change == "cell":
            longest = max(len(layers) for layers in mutator.options)
            of_node = mutator.inputs * longest + (mutator.inputs > 1)
            self._check_size(0, len(targets) * (max(mutator.times) * (mutator.nodes * of_node + 1) - 1))
        elif mutator.change in ("layer", "insert"):
            sizes = [len(layers or ()) for layers in mutator.options]
            gone = sum(len(target.slots) for target in targets) if mutator.change == "layer" else 0
            grown = max(sizes) - (mutator.change == "layer")
            self._check_size(len(targets) * sum(sizes) - gone, len(targets) * max(grown, 0))

    def _check_size(self, more_slots: int = 0, more_layers: int = 0) -> None:
        """Raises SpaceError for a space that is too large, with so many more slots, and layers of the template graph."""
        if len(self.points) > MOST_POINTS:
            raise SpaceError(f"model_id {self.model_id} has more than {MOST_POINTS} choice points")
        if len(self.slots) + more_slots > MOST_SLOTS:
            raise SpaceError(f"the choices of model_id {self.model_id} have more than {MOST_SLOTS} layers")
        if len(self.graph.layers) + more_layers > MOST_LAYERS:
            raise SpaceError(f"members of model_id {self.model_id} may have more than {MOST_LAYERS} layers")

    def _targets(self, mutator: Mutator, match: Any) -> list[MatchedLayer]:
        found: dict[str, list[Slot]] = {}
        for slot in self.slots:
            if match.fits(slot.name, slot.class_name):
                found.setdefault(slot.name, []).append(slot)
        return [self._target(mutator, name, found[name]) for name in match.at(list(found))]

    def _target(self, mutator: Mutator, name: str, slots: list[Slot]) -> MatchedLayer:
        """A layer that a mutator changes; `slots`: those of its name. Raises SpaceError where it cannot be changed."""
        condition = either([slot.condition for slot in slots])
        if any(slot.in_cell for slot in slots):
            raise SpaceError(f"mutator {mutator.number} matches layer {name!r}, which is the place of a cell")
        if condition is None or any(slot.entangled for slot in slots):
            raise SpaceError(
                f"mutator {mutator.number} matches layer {name!r}, which depends on two choices at once",
                "Put the mutator before the one that repeats the layer: its choice is that of all copies.",
            )
        return MatchedLayer(name, condition, slots)

    def _point(self, mutator: Mutator, targets: Sequence[MatchedLayer], what: str, options: Sequence[Any]) -> Point:
        """A new choice point for layers. `what`: its name, where the mutator gives none."""
        conditions = {target.condition for target in targets}
        condition = conditions.pop() if len(conditions) == 1 else ALWAYS
        name = mutator.name or what
        if mutator.name and not mutator.together:
            name = f"{name} of {targets[0].name}" if what != mutator.name else name
        point = self.new_point(name, options, condition)
        self.shown_at[point.name] = targets[0].slots[0].anchor
        return point

    def new_point(self, name: str, options: Sequence[Any], condition: Condition) -> Point:
        """A new choice point with a name like this one."""
        number, made = 1, name
        while made in self.taken:
            number, made = number + 1, f"{name} ({number})"
        self.taken.add(made)
        point = Point(made, options, condition.point, condition.options)
        depth, parent = 1, point.parent
        while parent is not None:
            depth, parent = depth + 1, parent.parent
        if depth > MOST_DEPTH:
            raise SpaceError(f"choice point {made[:100]!r} depends on more than {MOST_DEPTH - 1} others")
        self.points.append(point)
        return point

    def free(self, name: str) -> str:
        """A name that no layer of any member has; it is taken from now on."""
        number, made = self._numbers.get(name, 2), name
        while made in self.names:
            made = f"{name}_{number}"
            number += 1
        self._numbers[name] = number
        self.names.add(made)
        return made

    # --- changes -------------------------------------------------------------------------------------
    def _value(self, mutator: Mutator, targets: list[MatchedLayer]) -> None:
        argument = mutator.argument
        for slot in (slot for target in targets for slot in target.slots):
            if argument in slot.chosen:
                raise SpaceError(f"mutator {mutator.number} chooses {argument!r} of layer {slot.name!r} a second time")
            slot.chosen.add(argument)
            if slot.class_name not in self.custom and not knows(slot.class_name, argument):
                raise SpaceError(
                    f"mutator {mutator.number} sets {argument!r}, which is no argument of the {slot.class_name} {slot.name!r}",
                    f"It may have {', '.join(sorted(ARGUMENTS[slot.class_name] - EVERYWHERE))}.",
                )
            config = slot.layer["config"]
            if (
                argument not in config and "trainable" in config and "dtype" in config
            ):  # Keras has written it: it is whole
                raise SpaceError(
                    f"mutator {mutator.number} sets {argument!r}, which is no argument of the {slot.class_name} {slot.name!r}",
                    f"It has {', '.join(key for key in config if key not in ('name', 'trainable', 'dtype'))}.",
                )
        values = [self._checked_values(mutator, target) for target in targets]
        where = targets[0].name if not mutator.together else str(mutator.match)
        point = self._point(mutator, targets, f"{where}.{argument}", mutator.written)
        for target, checked in zip(targets, values):
            for slot in target.slots:
                slot.values.append((point, argument, checked))

        def step(graph: Graph, chosen: Chosen) -> None:
            if point.name in chosen:
                for target, checked in zip(targets, values):
                    if target.condition.holds(chosen):
                        graph.set(target.name, argument, checked[chosen[point.name]])

        self.steps.append(step)

    @property
    def checked_values(self) -> list[Any]:
        """The values of all `value` mutators, as the allow-list writes them."""
        return [value for values in self._checked.values() for value in values]

    def _checked_values(self, mutator: Mutator, target: MatchedLayer) -> list[Any]:
        """The mutator's values, as the allow-list writes them, checked for each class that the layer may have."""
        made = list(mutator.options)
        for class_name in dict.fromkeys(slot.class_name for slot in target.slots):
            if (mutator.number, class_name) not in self._checked:
                values = []
                for value in mutator.options:
                    self.check()
                    layer = {"class_name": class_name, "config": {mutator.argument: value}}
                    try:
                        values.append(checked_layer(layer, self.custom)["config"].get(mutator.argument, value))
                    except (ArchitectureError, Misfit) as error:
                        text = f"mutator {mutator.number} has an option that may not be used: {error}"
                        raise SpaceError(text) from None
                self._checked[mutator.number, class_name] = values
            made = self._checked[mutator.number, class_name]
        return made

    def _layer(self, mutator: Mutator, targets: list[MatchedLayer]) -> None:
        where = targets[0].name if not mutator.together else str(mutator.match)
        point = self._point(mutator, targets, where, mutator.written)
        for target in targets:
            self.check()
            names = [self._named(option, target.name, True) for option in mutator.options]
            self._offer(target, point, mutator.options, names)
            self.steps.append(replacing(target, point, mutator.options, names))

    _remove = _layer

    def _offer(
        self, target: MatchedLayer, point: Point, options: Sequence[Any], names: Sequence[Sequence[str]]
    ) -> None:
        """Put the layers of a layer choice among the slots, in the place of the target's."""
        kept = frozenset(at for at, option in enumerate(options) if option is None)
        entangled = target.condition != opened(point)
        made = []
        for slot in target.slots if kept else ():
            # (of a layer of several classes, the choice alone does not tell the class)
            apart = entangled or slot.condition != target.condition
            own = Condition(point, kept)
            made.append(
                Slot(
                    slot.name,
                    slot.layer,
                    own,
                    slot.anchor,
                    apart,
                    slot.chosen,
                    conditions=(*slot.conditions, own),
                    values=slot.values,
                )
            )
        anchor = target.slots[0].anchor
        at = max(range(len(options)), key=lambda at: len(options[at] or ()))
        if len(options[at] or ()) > 1:
            lead(self.graph, anchor, options[at], names[at])
        # the last layer has the place of the target's, those before it that of as many layers of the longest option
        places = [*names[at][:-1], anchor]
        for number, option in enumerate(options):
            for place, name, layer in zip(places[len(places) - len(option or ()) :], names[number], option or ()):
                own = Condition(point, frozenset([number]))
                made.append(Slot(name, layer, own, place, entangled, conditions=(target.condition, own)))
        first = self.slots.index(target.slots[0])
        self.slots[first:first] = made
        self.slots = [slot for slot in self.slots if not any(slot is old for old in target.slots)]

    def _insert(self, mutator: Mutator, targets: list[MatchedLayer]) -> None:
        word, options = "before" if mutator.before else "after", mutator.options
        where = targets[0].name if not mutator.together else str(mutator.match)
        point = self._point(mutator, targets, f"{word} {where}", mutator.written)
        for target in targets:
            self.check()
            names = [self._named(option, f"{target.name}_{word}", False) for option in options]
            at = max(range(len(options)), key=lambda at: len(options[at]))
            put_beside(self.graph, target.slots[0].anchor, options[at], names[at], mutator.before)
            entangled = target.condition != opened(point)
            made = [
                Slot(name, layer, own, place, entangled, conditions=(target.condition, own))
                for number, option in enumerate(options)
                for own in [Condition(point, frozenset([number]))]
                for place, name, layer in zip(names[at], names[number], option)
            ]
            beside = self.slots.index(target.slots[0]) if mutator.before else self.slots.index(target.slots[-1]) + 1
            self.slots[beside:beside] = made
            self.steps.append(inserting(target, point, options, names, mutator.before))

    def _named(self, option: Any, name: str, keeps: bool) -> list[str]:
        """Names of an option's layers. `keeps`: the last one keeps the name `name`, so that others find it."""
        if not option:
            return []
        made = []
        for number, layer in enumerate(option, 1):
            if keeps and number == len(option):
                made.append(name)
            else:
                made.append(
                    self.free(layer["config"].get("name") or (name if len(option) == 1 else f"{name}_{number}"))
                )
        return made

    def _repeat(self, mutator: Mutator, targets: list[MatchedLayer]) -> None:
        (target,) = targets
        ends = [target] if mutator.to is None else self._targets(mutator, mutator.to)
        reached = self.graph.after(target.slots[0].anchor)
        ends = [end for end in ends if end.slots[0].anchor in reached]
        if not ends:
            raise SpaceError(
                f"mutator {mutator.number} repeats from {target.name!r} to {mutator.to}, which does not follow it"
            )
        last = ends[0]
        anchors = target.slots[0].anchor, last.slots[0].anchor
        if last.condition not in (target.condition, ALWAYS):
            raise SpaceError(
                f"mutator {mutator.number} repeats to layer {last.name!r}, which is not in each member that has {target.name!r}"
            )
        point = self._point(mutator, targets, f"times {target.name}", mutator.options)
        anchors = self.graph.first_of(anchors[0]), self.graph.last_of(anchors[1])
        _, inside = self.graph.block(*anchors)
        block, most = set(inside), max(mutator.options)
        own = [slot for slot in self.slots if slot.anchor in block]
        self._check_size((most - 1) * len(own), (most - 1) * len(inside))
        named: dict[tuple[str, int], str] = {}
        for number in range(2, most + 1):
            self.check()
            enough = frozenset(at for at, times in enumerate(mutator.options) if times >= number)
            names = {name: self.free(f"{name}_{number}") for name in dict.fromkeys([*inside, *(s.name for s in own)])}
            named.update({(name, number): copied for name, copied in names.items()})
            copies = [
                Slot(
                    names[slot.name],
                    slot.layer,
                    Condition(point, enough),
                    names[slot.anchor],
                    slot.entangled or slot.condition != target.condition,
                    set(slot.chosen),
                    slot.in_cell,
                    (*slot.conditions, Condition(point, enough)),
                    list(slot.values),
                )
                for slot in own
            ]
            place = max(at for at, slot in enumerate(self.slots) if slot.anchor in block) + 1 + (number - 2) * len(own)
            self.slots[place:place] = copies
        if 0 in mutator.options:
            there = frozenset(at for at, times in enumerate(mutator.options) if times)
            for slot in own:
                slot.entangled = slot.entangled or slot.condition != target.condition
                slot.condition = either([Condition(point, there)]) or ALWAYS
                slot.conditions = (*slot.conditions, Condition(point, there))
        if most > 1:
            self.graph.repeat(*anchors, most, named)

        def step(graph: Graph, chosen: Chosen) -> None:
            if point.name in chosen and target.condition.holds(chosen):
                first, end = graph.first_of(target.name), graph.last_of(last.name)
                graph.repeat(first, end, mutator.options[chosen[point.name]], named)

        self.steps.append(step)

    def _inputs(self, mutator: Mutator, targets: list[MatchedLayer]) -> None:
        (target,) = targets
        name, anchor = target.name, target.slots[0].anchor
        every = [slot.name for slot in self.slots] + [n for n in self.graph.layers if not self.graph.is_layer(n)]
        sources: dict[str, None] = {}
        for pattern in dict.fromkeys(mutator.sources):
            self.check()
            found = [other for other in dict.fromkeys(every) if fnmatchcase(other, pattern) and other != name]
            if not found:
                raise SpaceError(
                    f"mutator {mutator.number} takes inputs from {pattern!r}, which matches no other layer"
                )
            sources.update(dict.fromkeys(found))
        reached = self.graph.after(anchor)
        behind = next((s for s in sources if any(o.name == s and o.anchor in reached for o in self.slots)), None)
        if behind is not None:
            raise SpaceError(
                f"mutator {mutator.number} makes a cycle: {name!r} would take the output of {behind!r}, which needs its own"
            )
        counts = range(mutator.least, mutator.most + 1)
        ways = sum(math.comb(len(sources), count) for count in counts)
        if not 0 < ways <= MOST_OPTIONS:
            raise SpaceError(
                f"mutator {mutator.number} has {ways} ways to take {mutator.least} to {mutator.most} of "
                f"{len(sources)} inputs; there must be from 1 to {MOST_OPTIONS}"
            )
        options = [list(taken) for count in counts for taken in itertools.combinations(sources, count)]
        listed = all(slot.class_name in LISTS for slot in target.slots)
        if not listed and mutator.most > 1:
            raise SpaceError(f"mutator {mutator.number} gives {name!r} {mutator.most} inputs, which takes one")
        if len(self.graph.layers[anchor]["inbound_nodes"]) != 1:
            raise SpaceError(f"mutator {mutator.number} chooses the inputs of {name!r}, which is called several times")
        point = self._point(mutator, targets, f"inputs of {name}", options)

        def step(graph: Graph, chosen: Chosen) -> None:
            if point.name in chosen and target.condition.holds(chosen):
                taken = dict.fromkeys(graph.standing(source) for source in options[chosen[point.name]])
                graph.connect(name, list(taken))

        self.steps.append(step)

    def _cell(self, mutator: Mutator, targets: list[MatchedLayer]) -> None:
        (target,) = targets
        self.graph.input_of(target.slots[0].anchor)
        cell = Cell(mutator, target.name, self.free)

        def open_point(what: str, options: Sequence[Any]) -> Point:
            point = self.new_point(f"{mutator.name or target.name} {what}", options, target.condition)
            self.shown_at[point.name] = target.slots[0].anchor
            return point

        cell.open(open_point)
        for slot in target.slots:
            slot.in_cell = True

        def step(graph: Graph, chosen: Chosen) -> None:
            if target.condition.holds(chosen):
                cell.build(graph, chosen)

        self.steps.append(step)

    # --- members -------------------------------------------------------------------------------------
    def build(self, graph: Graph, chosen: Mapping[str, int]) -> Graph:
        """Change a base model's graph into that of the member with these choices. Raises Misfit."""
        for step in self.steps:
            step(graph, dict(chosen))
        graph.prune()
        return graph


def _order(graph: Graph) -> list[str]:
    try:
        return graph.order()
    except Misfit as error:
        raise SpaceError(f"a base model cannot be used: {error}") from None
