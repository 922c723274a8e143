"""A model to evaluate, predict with or export, read from a table or described by another session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mop_udf.architecture import architecture, architecture_shapes
from mop_udf.pool.process import Trainer
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.weights import Source
from pg_mop.columns import Column, Transform, transform_from_json


class Model:
    """A checked model: its architecture, its weights and the transform of the rows that it was trained on.

    `what`: its name in errors; `weights`: float32 bytes, or None where they are read from their `source` when they are
    needed; `input_shapes`: of one row of each input; `outputs`: the width of each output, None where the JSON has none;
    `steps`: the dimensions before the width of each output, empty for a vector. `lend` completes `outputs` and `steps`.

    `given_classes`: the caller gave the class values, so their number must be that of the model's outputs; `regression`: it
    was trained on numbers, neither on classes nor on soft labels.

    `objects`: {name: pickle} of its custom layers, and of its own class.
    """

    transform: Transform
    what: str
    outputs: list[int | None]
    steps: list[list[int]]
    weights: bytes | None
    source: Source
    regression = given_classes = False
    objects: Mapping[str, bytes] = MappingProxyType({})

    @classmethod
    def from_json(cls, data: Mapping[str, Any], architecture_text: str, weights: bytes) -> Model:
        """The model that another session describes (see `to_json`). Raises MopError."""
        model = cls.__new__(cls)
        model._take_description(data)
        model._read_architecture(architecture_text, weights, len(model.transform.outputs), data["what"])
        return model

    def _take_description(self, data: Mapping[str, Any]) -> None:
        self.transform = transform_from_json(data["transform"])
        self.regression, self.given_classes = data["regression"], data["given_classes"]

    def to_json(self) -> dict[str, Any]:
        """The description for another session, which also gets the architecture and the weights (JSON-able)."""
        return {
            "what": self.what,
            "transform": self.transform.to_json(),
            "given_classes": self.given_classes,
            "regression": self.regression,
        }

    @property
    def output_names(self) -> list[str]:
        return [column.name for column in self.transform.outputs]

    @property
    def widths(self) -> list[int]:
        """The widths of the outputs, which are known once a trainer holds the model."""
        widths = [width for width in self.outputs if width is not None]
        assert len(widths) == len(self.outputs)
        return widths

    def input_columns(self, names: Sequence[str]) -> list[Column]:
        """The input columns under the `names` that they have in another table, with the shapes that the model takes."""
        return [
            column.with_parameters(name, shape=shape)
            for column, name, shape in zip(self.transform.inputs, names, self.input_shapes, strict=True)
        ]

    def wires_sql(self, names: Sequence[str]) -> list[str]:
        """SQL: the columns `names` of another table as `encode_for_prediction` of the input columns takes them."""
        return [column.wire_sql(quote_identifier(column.name)) for column in self.input_columns(names)]

    def lend(self, trainer: Trainer, db: Database | None = None) -> None:
        """Have a trainer hold the model, to predict with it or to export it. `db`: reads weights that were not read yet.

        Raises MopError where the outputs are not vectors, or not as many as the model's description says.
        """
        if self.weights is None:
            assert db is not None
            weights = self.source.read(db)
        else:
            weights = self.weights
        trainer.has_run_code = trainer.has_run_code or bool(self.objects)
        header = {"op": "model", "architecture": self.architecture_text, "objects": list(self.objects)}
        trainer.send(header, weights, *self.objects.values())
        del weights
        self.take_outputs(trainer.receive()[0]["outputs"])

    def take_outputs(self, shapes: Sequence[Any]) -> None:
        """Complete `outputs` and `steps` by the shapes that Keras gives. Raises MopError as `lend`."""
        for shape in shapes:
            if not architecture_shapes.is_known(shape):
                raise MopError(f"{self.what} cannot be used: {architecture_shapes.NO_SHAPE} {shape}")
        if len(shapes) != len(self.outputs):
            raise MopError(f"{self.what} has {len(shapes)} outputs, not {len(self.outputs)}")
        self.outputs = [shape[-1] for shape in shapes]
        self.steps = [shape[:-1] for shape in shapes]
        self.check_classes()

    def check_without_code(self, place: str) -> None:
        """Raises MopError where the model has custom classes: their code is not sent to another `place`."""
        if self.objects:
            names = ", ".join(self.objects)
            classes = "classes" if len(self.objects) > 1 else "class"
            raise MopError(
                f"{self.what} has the custom {classes} {names}: {place} has Keras' own classes alone", sqlstate="0A000"
            )

    def check_classes(self) -> None:
        """Raises MopError where the caller's class values are not as many as the model's outputs, as far as known."""
        if self.given_classes:
            check_given([column.classes for column in self.transform.outputs], self.outputs)

    def _read_architecture(
        self, text: str, weights: bytes | None, outputs: int, what: str, custom: Mapping[str, str] | None = None
    ) -> None:
        """Check the architecture JSON; `custom`: the names that custom layers may have. Raises MopError."""
        self.architecture_text, self.weights, self.what = text, weights, what
        try:
            checked = architecture.check(text, custom=custom)
            self.input_shapes = architecture_shapes.input_shapes(checked)
            self.outputs = architecture_shapes.output_widths(checked, outputs)
            self.architecture = checked
        except architecture.ArchitectureError as error:
            raise MopError(f"{what} cannot be used: {error}") from None


def check_given(classes: Sequence[list[str | None] | None], widths: Sequence[int | None]) -> None:
    """Raises MopError where class values (of each output, or None) do not match the widths of a model's outputs."""
    counts = [None if values is None else len(values) for values in classes]
    if len(counts) != len(widths) or not all(
        None in (count, width) or count == width for count, width in zip(counts, widths)
    ):
        raise MopError(f"class_values has {counts} values, the model outputs {widths} classes")
