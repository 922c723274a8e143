"""A model to evaluate, predict with or export, wherever it was read from."""

from mop_udf import architecture, architecture_shapes
from pg_mop.backend.errors import MopError


class Model:
    """`what` names it in errors; `architecture_text` and `weights` (float32 bytes); `weights_sql`, which selects them;
    `input_shapes` and `outputs` (widths, None where only the built model says one: `lend` fills them in);
    `output_names`.

    `classes`: for each output the class values as text (None = SQL NULL), or None where it was not one-hot encoded;
    `given_classes`: the caller gave them, so they must be as many as the model outputs; `normalizing_const`;
    `regression`: it was trained on numbers, neither on classes nor on soft labels.
    """

    regression = given_classes = False
    TOLD = ("what", "output_names", "classes", "given_classes", "normalizing_const", "regression")

    @classmethod
    def from_told(cls, told, architecture_text, weights):
        """The model of which another session has told (see `told`). Raises MopError."""
        model = cls()
        vars(model).update({name: told[name] for name in cls.TOLD})
        model._read_architecture(architecture_text, weights, len(model.output_names), model.what)
        return model

    def told(self):
        """What another session must know of it, besides its architecture and weights (JSON-able)."""
        return {name: getattr(self, name) for name in self.TOLD}

    def lend(self, trainer):
        """Have a trainer hold the model, to predict with it or to export it. Raises MopError where its outputs are no
        vectors, or others than is said of it."""
        trainer.send({"op": "model", "architecture": self.architecture_text}, self.weights)
        shapes = trainer.receive()[0]["outputs"]
        for shape in shapes:
            if not architecture_shapes.is_vector(shape):
                raise MopError(f"{self.what} cannot be used: {architecture_shapes.NO_VECTOR} {shape}")
        if len(shapes) != len(self.outputs):
            raise MopError(f"{self.what} has {len(shapes)} outputs, not {len(self.outputs)}")
        self.outputs = [width for (width,) in shapes]
        self.check_classes()

    def check_classes(self):
        """Raises MopError where class values that were given are not as many as the model outputs, as far as known."""
        given = [None if c is None else len(c) for c in self.classes]
        if self.given_classes and (
            len(given) != len(self.outputs)
            or not all(None in (count, width) or count == width for count, width in zip(given, self.outputs))
        ):
            raise MopError(f"class_values has {given} values, the model outputs {self.outputs} classes")

    def _read_architecture(self, text, weights, outputs, what):
        """Check the architecture JSON. Raises MopError."""
        self.architecture_text, self.weights, self.what = text, weights, what
        try:
            checked = architecture.check(text)
            self.input_shapes = architecture_shapes.input_shapes(checked)
            self.outputs = architecture_shapes.output_widths(checked, outputs)
            self.architecture = checked
        except architecture.ArchitectureError as error:
            raise MopError(f"{what} cannot be used: {error}") from None
