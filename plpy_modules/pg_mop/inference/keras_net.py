"""A net that Keras computes in another process: a serving process that the sessions of the role share, or a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mop_udf.aggregate import Session
from mop_udf.pool.process import Trainer
from mop_udf.pool.serving_client import NotServed
from pg_mop.backend.arrays import np
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database
from pg_mop.backend.limits import Limits
from pg_mop.backend.quoting import quote_identifier

if TYPE_CHECKING:
    from pg_mop.inference.named_model import NamedModel


class KerasNet:
    """The net of a named model. A call gives its outputs, as one of forward.Net does.

    The serving process knows a model by its digest, so a session that asks must have read the model itself. A model with custom
    code has a trainer of its own: no other session's rows meet what that code leaves behind.
    """

    def __init__(
        self,
        db: Database,
        session: Session,
        model: NamedModel,
        options: Mapping[str, Any],
        leased: Callable[[], Trainer],
    ) -> None:
        """`options`: of a trainer; `leased`: gives the session's trainer."""
        self.db, self.session, self.model, self._leased = db, session, model, leased
        self._trainer: Trainer | None = None
        self._has_ended = False
        limits = Limits(db.plpy, quote_identifier(extension_schema(db.plpy)))
        self._options = None if model.objects else limits.allowed(options)  # None: the trainer answers

    def outlives_call(self) -> bool:
        """Whether a serving process answers: then the net may be kept beyond its call. From now on it reads no table and has
        no trainer, but raises NotServed."""
        self._has_ended = self._options is not None
        return self._has_ended

    def request(self, header: dict[str, Any], *payloads: Any) -> tuple[dict[str, Any], Any]:
        """The answer to a request. Raises TrainerError and TrainerLost."""
        if self._options is not None:
            try:
                return self.session.served.request(self._options, header, *payloads)
            except NotServed:
                self._options = None
        if self._has_ended:
            raise NotServed
        if self._trainer is None or not self._trainer.alive():  # (a net may be asked again after its trainer has left)
            self._trainer = self._leased()
        self._trainer.has_run_code = self._trainer.has_run_code or bool(self.model.objects)
        return self._trainer.request(header, *payloads)

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs [rows, ...] of inputs [rows, ...], as float32. Raises MopError where the net does not suit the model."""
        model = self.model
        header = {"op": "predict", "digest": model.digest(self.db), "shapes": [list(a.shape) for a in arrays]}
        rows = [np.ascontiguousarray(a, "<f4").reshape(-1).view(np.uint8) for a in arrays]
        answer, payloads = self.request(header, *rows)
        if answer.get("absent"):
            if self._has_ended:
                raise NotServed
            header |= {"architecture": model.architecture_text, "objects": list(model.objects)}
            weights = model.source.read(self.db)
            answer, payloads = self.request(header, weights, *model.objects.values(), *rows)
        model.take_outputs(answer["outputs"])
        model.check_steps(self.db)
        return [np.frombuffer(p, "<f4").reshape(shape) for p, shape in zip(payloads, answer["shapes"], strict=True)]
