"""The fitted column types of a packed table as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.columns.base import Column


@dataclass(frozen=True)
class Transform:
    """The independent columns (`inputs`) and the dependent columns (`outputs`), in the order of the models' inputs and
    outputs, and the column of sample weights, or None."""

    inputs: Sequence[Column]
    outputs: Sequence[Column]
    weight: Column | None = None

    @property
    def columns(self) -> list[Column]:
        return [*self.inputs, *self.outputs, *([] if self.weight is None else [self.weight])]

    @property
    def dtypes(self) -> list[str]:
        """numpy dtypes of the columns' bytes."""
        return [column.dtype for column in self.columns]

    @property
    def is_regression(self) -> bool:
        """Whether the outputs are numbers or soft labels, not one-hot classes."""
        return any(output.is_numbers for output in self.outputs)

    @property
    def dependent_dtype(self) -> str:
        """int16 or float32, as the preprocessor's argument of that name."""
        return "float32" if self.is_regression else "int16"

    def wanted_outputs(self, table: str, shapes: Sequence[list[int]]) -> dict[str, Any]:
        """The outputs that a model must have for rows of `table` (see mop_udf.architecture.architecture_shapes.output_misfit).

        `shapes`: of a row of each dependent column: [width], or [steps, width] where a row has a vector for each step.
        """
        wanted = [output.wanted_output(shape[-1]) for output, shape in zip(self.outputs, shapes)]
        one_unit = [output.one_unit for output in wanted]
        steps = [list(shape[:-1]) for shape in shapes]
        return {
            **({"one_unit": one_unit} if any(one_unit) else {}),
            **({"steps": steps} if any(steps) else {}),
            "widths": [output.width for output in wanted],
            "what": "numbers" if any(output.kind == "numbers" for output in wanted) else "classes",
            "table": table,
        }

    def difference(self, other: Transform) -> str | None:
        """How rows of this transform differ from rows of another, as an error says it; None: they do not.

        A parameter that one of the two does not know is no difference.
        """
        if self.dependent_dtype != other.dependent_dtype:
            return f"dependent_dtype {self.dependent_dtype}, not {other.dependent_dtype}"
        return (
            _first_difference(self.inputs, other.inputs)
            or _other_order("independent_varname", self.inputs, other.inputs)
            or _other_order("dependent_varname", self.outputs, other.outputs)
            or _first_difference(self.outputs, other.outputs)
            or _weight_difference(self.weight, other.weight)
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-able value that `columns.transform_from_json` reads."""
        return {
            "inputs": [column.to_json() for column in self.inputs],
            "outputs": [column.to_json() for column in self.outputs],
            **({} if self.weight is None else {"weight": self.weight.to_json()}),
        }


def _first_difference(own: Sequence[Column], others: Sequence[Column]) -> str | None:
    found = (column.difference(other) for column, other in zip(own, others))
    return next((difference for difference in found if difference), None)


def _weight_difference(own: Column | None, other: Column | None) -> str | None:
    """The difference that only one of the two has sample weights; the names of their columns make none."""
    if own is None and other is not None:
        return f"no sample weights, not those of {other.name}"
    if own is not None and other is None:
        return f"sample weights, {own.name}, not none"
    return None


def _other_order(argument: str, own: Sequence[Column], others: Sequence[Column]) -> str | None:
    """The difference between equal names in different orders."""
    names, other_names = [c.name for c in own], [c.name for c in others]
    if names == other_names or sorted(names) != sorted(other_names):
        return None
    return f"{argument} {', '.join(names)}, not {', '.join(other_names)}"
