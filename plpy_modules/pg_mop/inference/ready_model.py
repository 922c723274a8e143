"""A model that is ready to answer for one row: what a query that asks for each row needs again and again.

The checks of a model's name, of its table and of the caller's rights are repeated where one of them may have another result
(backend/catalog_state.py). Three things are done for each row: PostgreSQL looks for the version in use (and refuses a reader
without rights), and turns the row into wires; NumPy computes the net. A transaction locks the table before it compares the two
states: a lock lets the session hear of changes, and a plan that is made anew would run functions of a new index. Each statement
of the client hears of them again, since the lock of an open transaction is an old one.
A net that a serving process computes is ready until the transaction ends: settings and the role's limits are read again then.
"""

from __future__ import annotations

from typing import Any

from mop_udf.pool.process import TrainerError, TrainerLost
from pg_mop.backend.catalog_state import CatalogState, catalog_state, hear, lock_scope, statement_begin
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.inference.keras_net import KerasNet
from pg_mop.inference.named_model import KEPT, Answer, Computer, NamedModel

MOST = KEPT  # models that a session keeps ready

# (name, version, search_path) as the caller gives them
Asked = tuple[str | None, float | None, str | None]


class ReadyModel:
    """A model whose checks have passed in a state of the catalog."""

    def __init__(self, db: Database, state: CatalogState, model: NamedModel, net: Computer) -> None:
        self.model, self._query = model, model.place_query
        self.checked(state, net)
        self._hold = db.plpy.prepare(model.rows.hold_sql(db), ["oid"])
        # one statement: each costs a subtransaction of its own
        row_query = f"SELECT * FROM ({self._query}) AS place, ({model.row_query}) AS wires"
        self._row = db.plpy.prepare(row_query, ["json"])

    def serves(self, model: NamedModel) -> bool:
        """Whether the kept plans are those of a model that has been found again."""
        return self.model is model and self._query == model.place_query

    def checked(self, state: CatalogState, net: Computer) -> None:
        """The checks have passed in a state, and this transaction has locked the table."""
        self._state, self._scope, self._net = state, lock_scope(), net
        self._statement = statement_begin()

    def is_current(self, plpy: Any) -> bool:
        """Whether the checks would pass again; the table is locked then."""
        statement = statement_begin()
        if statement != self._statement:
            hear(plpy)
            self._statement = statement
        if self._state != catalog_state():
            return False
        scope = lock_scope()
        if scope != self._scope:
            if isinstance(self._net, KerasNet):
                return False
            try:
                plpy.execute(self._hold, [self.model.table.oid])
            except plpy.SPIError as error:
                if is_cancel(error):
                    raise
                return False
            self._scope = scope
        return self._state == catalog_state()

    def answers(self, plpy: Any, row: str) -> list[Answer] | None:
        """The answer for a row, a JSON object; None where the whole way must be gone: the version has been replaced, a value
        has another type, or the session is to be told of a value."""
        model = self.model
        unseen: dict[str, list[str]] = {}
        if not model.has_columns(row) and (model.lacked_at != self._statement or not model.has_columns(row, any)):
            return None
        try:
            rows = plpy.execute(self._row, [model.without_nul(row)])
            if len(rows) != 1 or (rows[0]["place"], rows[0]["writer"]) != model.key:
                return None
            row_answers = model.answers(self._net, rows, unseen)
        except plpy.SPIError as error:
            if not str(error.sqlstate).startswith("22"):
                raise
            return None
        except (MopError, TrainerError, TrainerLost):
            return None
        return row_answers if model.told.issuperset(unseen) else None


_ready: dict[Asked, ReadyModel] = {}


def ready_model(plpy: Any, asked: Asked) -> ReadyModel | None:
    """The model, where it is ready."""
    model = _ready.get(asked)
    return model if model is not None and model.is_current(plpy) else None


def keep_ready(db: Database, asked: Asked, state: CatalogState | None, model: NamedModel, net: Computer) -> None:
    """Keep a model ready. `state`: of the catalog before the checks; `net`: what has answered. A model that a trainer computes
    is not kept."""
    if state is None or isinstance(net, KerasNet) and not net.outlives_call():
        return
    kept = _ready.get(asked)
    if kept is not None and kept.serves(model):
        kept.checked(state, net)
        return
    if kept is None and len(_ready) >= MOST:
        _ready.pop(next(iter(_ready)))
    _ready[asked] = ReadyModel(db, state, model, net)
