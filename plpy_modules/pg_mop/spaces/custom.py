"""Layers with code in a space: which classes it may have, and the shapes that these have told. Pure Python.

No code of a layer runs here. `ask` has a trainer tell a layer's output shape; what it told is kept with the space. So equal
calls find equal members, with or without a trainer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pg_mop.plan.shapes import Misfit, Shape

MOST_TOLD = 20_000  # shapes that are kept with a space


class CustomLayers:
    """The custom layers of a space.

    `names`: {class: digest of its pickle}, as mop_udf.architecture takes them; `told`: what layers have told, by `key`: a
    shape without the rows; None, where there is no single one; a text, why the layer takes no such inputs.
    """

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        told: Mapping[str, Any] | None = None,
        ask: Callable[[str, Mapping[str, Any], list[list[int | None]], bool], Any] | None = None,
        table: str | None = None,
    ) -> None:
        """`ask(class, config, shapes of inputs, they are a list)`: has a trainer tell a shape; None: `told` has all that is
        known. `table`: the name of the object table."""
        self.table = table
        self.names = dict(names or {})
        self.told: dict[str, Any] = dict(told or {})
        self._ask = ask

    def __bool__(self) -> bool:
        return bool(self.names)

    def __contains__(self, class_name: object) -> bool:
        return class_name in self.names

    def shape(self, class_name: str, config: Mapping[str, Any], shapes: Sequence[Shape], listed: bool) -> Shape:
        """The output shape of a layer; None: it is unknown. `listed`: it takes its inputs as a list.

        Raises Misfit where the layer has told that it does not take such inputs.

        >>> layers = CustomLayers({"Scale": ""}, ask=lambda name, config, shapes, listed: shapes[0])
        >>> layers.shape("Scale", {"name": "a"}, [(4,)], False), layers.shape("Scale", {}, [None], False)
        ((4,), None)
        """
        if any(shape is None for shape in shapes):
            return None
        given = [list(shape or ()) for shape in shapes]
        key = self.key(class_name, config, given, listed)
        if key not in self.told:
            if self._ask is None or len(self.told) >= MOST_TOLD:
                return None
            self.told[key] = self._ask(class_name, config, given, listed)
        found = self.told[key]
        if isinstance(found, str):
            raise Misfit(f"{class_name} {found}")
        return None if found is None else tuple(found)

    @staticmethod
    def key(class_name: str, config: Mapping[str, Any], shapes: Iterable[Any], listed: bool) -> str:
        """Text that is equal for layers that have equal output shapes."""
        own = {name: value for name, value in config.items() if name not in ("name", "trainable", "build_config")}
        return json.dumps([class_name, own, list(shapes), listed], sort_keys=True)


NONE = CustomLayers()


def checked(told: Any) -> dict[str, Any]:
    """What layers have told, from a table of a space. Raises ValueError for anything else."""
    if not isinstance(told, dict) or len(told) > MOST_TOLD:
        raise ValueError("the shapes of custom layers are no object")
    for key, value in told.items():
        if value is not None and not isinstance(value, str) and not _is_shape(value):
            raise ValueError(f"custom layers have told {str(value)[:100]!r} in place of a shape for {key[:100]}")
    return told


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(
        size is None or isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**31 for size in value
    )
