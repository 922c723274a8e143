"""Model spaces: a builder of mutators, in a few lines of Python, and a look at spaces that the server has.

A builder only writes the JSON of `mop_space`: the server checks it, and nothing of it is executed there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pg_mop_client.errors import ClientError
from pg_mop_client.functions import _native
from pg_mop_client.server import Server

if TYPE_CHECKING:
    import pandas

Match = str | Mapping[str, Any]  # a layer's name, a pattern of names, or what `match` returns
Layers = (
    Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | None
)  # a layer as `layer` returns it, a list of layers, "keep", or None

OPTIONS = '["keep", layer("Dropout", rate=0.2)]'  # as a hint shows options that are layers


def layer(kind: str, **config: Any) -> dict[str, Any]:
    """A layer as an option of a mutator: layer("Dropout", rate=0.2). `kind`: the name of Keras' class."""
    return {"class": kind, **config}


def match(
    name: str | None = None, kind: str | Sequence[str] | None = None, position: int | Sequence[int] | None = None
) -> dict[str, Any]:
    """Which layers a mutator changes: those of a name (a pattern with *, ? and [...]), of Keras' classes `kind`, and at a
    position among the layers that match: 1 is the first, -1 the last. Raises ClientError without any of these."""
    found = {"name": name, "class": _listed(kind), "position": _listed(position)}
    found = {key: value for key, value in found.items() if value is not None}
    if not found:
        raise ClientError("match needs a name, a kind or a position", hint='match(kind="Dense", position=[1, -1])')
    return found


class Space:
    """A model space: base models, and mutators that change them (docs/spaces.md). Each method returns a new space with one
    mutator more, so that a space may be the beginning of several.

    >>> space = Space(base=[1, 2]).choose("hidden*", "units", [16, 32]).repeat("hidden", [1, 2, 3])
    >>> space = space.insert("conv", [None, layer("BatchNormalization")])
    >>> print(space)
    [{"change": "value", "match": "hidden*", "argument": "units", "choices": [16, 32]},
     {"change": "repeat", "match": "hidden", "times": [1, 2, 3]},
     {"change": "insert", "match": "conv", "choices": [null, {"class": "BatchNormalization"}]}]

    All methods take, besides their own arguments, `base`: the model_ids of the base models that the mutator changes; `name`:
    of its choice points; and, where a mutator may match several layers, `together`: one choice for all of them.
    """

    def __init__(self, base: Sequence[int] | int | None = None, mutators: Sequence[Mapping[str, Any]] = ()) -> None:
        """`base`: model_ids of an architecture table; None: all of them. `mutators`: as the JSON has them."""
        self.base = _bases(base)
        self.mutators: list[dict[str, Any]] = [dict(one) for one in mutators]

    # --- mutators -----------------------------------------------------------------------------------
    def choose(self, layer: Match, argument: str, values: Sequence[Any], **more: Any) -> Space:
        """A choice of an argument's value: units, rate, activation, or any other of the layer."""
        return self._with(
            "value",
            layer,
            {"argument": argument, "choices": _several("values", values, '["relu", "tanh"]')},
            ("together",),
            more,
        )

    def replace(self, layer: Match, options: Sequence[Layers], **more: Any) -> Space:
        """A choice of the layer itself: "keep", another layer, a list of layers in its place, or None: no layer."""
        return self._with("layer", layer, {"choices": _several("options", options, OPTIONS)}, ("together",), more)

    def insert(self, layer: Match, options: Sequence[Layers], before: bool = False, **more: Any) -> Space:
        """A choice of layers to put after (or before) the layer; None: nothing."""
        own = {"choices": _several("options", options, OPTIONS), **({"where": "before"} if before else {})}
        return self._with("insert", layer, own, ("together",), more)

    def remove(self, layer: Match, **more: Any) -> Space:
        """A choice whether the layer is there."""
        return self._with("remove", layer, {}, ("together",), more)

    def repeat(self, layer: Match, times: Sequence[int], to: Match | None = None, **more: Any) -> Space:
        """A choice how often the block from the layer up to the next layer that matches `to` comes; without `to`, the layer
        alone. 0: it is left out."""
        own = {"times": _several("times", times, "[1, 2, 3]"), **({} if to is None else {"to": _plain(to)})}
        return self._with("repeat", layer, own, (), more)

    def connect(
        self, layer: Match, sources: Sequence[str], least: int = 1, most: int | None = None, **more: Any
    ) -> Space:
        """A choice whose outputs the layer takes: `least` to `most` (`least`) of the layers `sources`, names or patterns."""
        own = {
            "from": _several("sources", sources, '["left", "right*"]'),
            "least": least,
            "most": least if most is None else most,
        }
        return self._with("inputs", layer, own, (), more)

    def cell(
        self,
        layer: Match,
        operations: Sequence[Layers],
        nodes: int = 1,
        inputs: int = 1,
        join: str | None = None,
        times: Sequence[int] | None = None,
        **more: Any,
    ) -> Space:
        """A cell in the place of the layer: each node chooses its inputs, and an operation for each; `join` (Concatenate, Add,
        Average, Maximum, Multiply) joins the nodes that no other takes; `times`: how often the cell comes."""
        own: dict[str, Any] = {
            "operations": _several("operations", operations, OPTIONS),
            "nodes": nodes,
            "inputs": inputs,
        }
        own.update(
            {} if join is None else {"join": join},
            **({} if times is None else {"times": _several("times", times, "[1, 2]")}),
        )
        return self._with("cell", layer, own, (), more)

    def _with(
        self, change: str, layer: Match, own: dict[str, Any], allowed: tuple[str, ...], more: Mapping[str, Any]
    ) -> Space:
        unknown = next((key for key in more if key not in ("base", "name", *allowed)), None)
        if unknown is not None:
            raise TypeError(
                f"a mutator {change!r} has no argument {unknown!r} ({', '.join(('base', 'name', *allowed))})"
            )
        common = {key: _bases(value) if key == "base" else value for key, value in more.items() if value is not None}
        made = _native({"change": change, "match": _plain(layer), **own, **common})
        _dumped(made, f"mutator {len(self.mutators) + 1} ({change})")
        return Space(self.base, [*self.mutators, made])

    # --- JSON ---------------------------------------------------------------------------------------
    def json(self) -> str:
        """The mutators as JSON, for mop_space: one in each line."""
        return "[" + ",\n ".join(_dumped(one, "a mutator") for one in self.mutators) + "]"

    __str__ = json

    def __repr__(self) -> str:
        of = "all models" if self.base is None else f"models {', '.join(map(str, self.base))}"
        return f"<space of {of}, {len(self.mutators)} mutator{'s' * (len(self.mutators) != 1)}>"

    def create(
        self, on: Server, name: str, table: str, adapt: str | None = None, object_table: str | None = None
    ) -> ServerSpace:
        """Make the table `name` with this space. `on`: the connection; `table`: the architecture table with the base models;
        `adapt`: "project" puts in what a merge of different shapes needs; `object_table`: has the custom layers that base
        models and mutators name. Raises ClientError."""
        more = {} if object_table is None else {"object_table": object_table}
        on.mop_space(name, table, self.base, self.json(), adapt, **more)
        return ServerSpace(on, name)


class ServerSpace:
    """A space that the server has, in the table `name`. Each method raises ClientError where it cannot be read."""

    def __init__(self, on: Server, name: str) -> None:
        self.on, self.name = on, name

    def __repr__(self) -> str:
        return f"<space {self.name}>"

    def __str__(self) -> str:
        return self.show()

    def size(self) -> int:
        """The exact number of members."""
        return int(self.on.mop_space_size(self.name))

    def sample(self, n: int = 10, seed: int = 0) -> pandas.DataFrame:
        """Random members that fit together: number, choices, architecture, parameters, primitives."""
        return self.on.mop_space_sample(self.name, n, seed)

    def show(self) -> str:
        """The layers of the base models with their choice points, as text."""
        return str(self.on.mop_space_show(self.name))

    @property
    def data(self) -> dict[str, Any]:
        """The same as data: the base models with their layers, and the choice points of each layer."""
        return json.loads(self.on.mop_space_show(self.name, "json"))


def _listed(value: Any) -> Any:
    return (
        value
        if value is None or isinstance(value, (str, list))
        else list(value)
        if hasattr(value, "__iter__")
        else [value]
    )


def _bases(given: Any) -> list[int] | None:
    """The model_ids of base models. Raises ClientError for a text, which would be taken digit by digit."""
    if given is None:
        return None
    if isinstance(given, (str, bytes)):
        raise ClientError(f"base must be a model_id or a list of them, not the text {given!r}", hint="base=[1, 2]")
    return [int(one) for one in _listed(given)]


def _several(what: str, given: Any, example: str) -> list[Any]:
    """The options of a mutator. Raises ClientError for anything but a list of them: a text is a sequence of letters, and a
    layer one of its keys."""
    if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__iter__"):
        kind = "text" if isinstance(given, (str, bytes)) else type(given).__name__
        raise ClientError(f"{what} must be a list, not the {kind} {given!r}", hint=f"{what}={example}")
    return list(given)


def _plain(given: Match) -> Any:
    if not isinstance(given, (str, Mapping)):
        raise ClientError(
            f"a mutator matches a layer's name, or what match(...) gives, not {type(given).__name__}",
            hint='"hidden*", or match(kind="Dense", position=1)',
        )
    return given if isinstance(given, str) else dict(given)


def _dumped(made: Mapping[str, Any], what: str) -> str:
    """JSON of a mutator. Raises ClientError where it has something that JSON has not, such as a function or a live layer."""
    try:
        return json.dumps(made, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientError(
            f"{what} cannot be written as JSON: {error}", hint='A layer is written layer("Dropout", rate=0.2).'
        ) from None
