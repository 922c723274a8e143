"""The custom layers of a model space: from the object table that the space names, by the rules of all object tables.

`mop_space` has a trainer ask the layers for their output shapes, and keeps them in the space's table. All later calls take them
from there, so that they need no trainer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mop_udf.architecture.architecture import custom_classes
from pg_mop.api.common.session import trainer_of, trainer_options
from pg_mop.backend import object_table
from pg_mop.backend.errors import MopError
from pg_mop.spaces import ModelSpace
from pg_mop.spaces.custom import NONE, CustomLayers, checked


class Asking:
    """The custom layers of a space that is made: `layers`. A trainer is leased with the first question, within `stack`."""

    def __init__(self, db: Any, session: Any, functions: str, stack: contextlib.ExitStack) -> None:
        """`functions`: the object table, quoted, from object_table.check."""
        self.db, self.session, self.functions, self.stack = db, session, functions, stack
        self.layers = CustomLayers(object_table.layer_names(db, functions), ask=self._ask)
        self._pickles: dict[str, bytes] = {}
        self._trainer: Any = None

    def _ask(self, class_name: str, config: Mapping[str, Any], shapes: list[list[int | None]], listed: bool) -> Any:
        """See CustomLayers."""
        self.db.hear_interrupts()
        if self._trainer is None:
            self._trainer = self.stack.enter_context(trainer_of(self.session, trainer_options(self.db, False)))
            self._trainer.has_run_code = True
        layer = {"class_name": class_name, "config": dict(config), "module": None, "registered_name": None}
        request = {"op": "layer_shape", "layer": layer, "shapes": shapes, "listed": listed, "objects": [class_name]}
        self._trainer.send(request, self._pickle(class_name))
        answer = self._trainer.receive()[0]
        return answer["refused"] if "refused" in answer else answer["shape"]

    def _pickle(self, class_name: str) -> bytes:
        if class_name not in self._pickles:
            self._pickles.update(object_table.read(self.db, self.functions, None, layers=[class_name]))
        return self._pickles[class_name]

    def written(self, models: ModelSpace) -> dict[str, Any] | None:
        """What the space's table keeps: the digests of the classes that the space has, and what they have told; None without
        any."""
        names = used_by(models)
        if not names:
            return None
        return {"digests": {name: _digest(self._pickle(name)) for name in names}, "told": self.layers.told}


def used_by(models: ModelSpace) -> list[str]:
    """The custom classes that the base models and the mutators of a space name."""
    names = {name for base in models.bases for name in custom_classes([base.checked, base.variations.checked_values])}
    for mutator in models.mutators:
        names.update(name for option in mutator.options for name in custom_classes(option))
        for match in (mutator.match, mutator.to):
            names.update(name for name in (match.classes if match is not None else ()) if name in models.custom)
    return sorted(names)


def read(db: Any, space: str, table: str | None, written: str | None) -> CustomLayers:
    """The custom layers of a space, from its table's columns. Raises MopError where the object table is gone, is one that other
    roles may write, or has other code now."""
    if written is None:
        return NONE
    try:
        given = json.loads(written)
        digests = given["digests"]
        if not isinstance(digests, dict) or not all(isinstance(one, str) for one in digests.values()):
            raise ValueError("the digests of custom layers are no object of texts")
        told = checked(given["told"])
        json.dumps(
            told, ensure_ascii=False
        ).encode()  # half of a character, as JSON may have it, is no text of PostgreSQL
        if not object_table.are_names(digests):
            raise ValueError("the name of a custom layer is no text of PostgreSQL")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MopError(f'model space "{space}" has custom layers that cannot be read: {str(error)[:200]}') from None
    if table is None:
        raise MopError(f'model space "{space}" has custom layers, but no object table')
    hint = f"Make the space again: SELECT {db.extension}.mop_space(...);"
    functions = object_table.check_unchanged(db, table, digests, f'model space "{space}"', hint, "call of mop_space")
    return CustomLayers(digests, told, table=object_table.within_schema(functions))


def _digest(pickle: bytes) -> str:
    return hashlib.sha256(pickle).hexdigest()
