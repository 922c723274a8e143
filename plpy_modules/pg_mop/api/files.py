"""mop_export_model and mop_import_model: models out of the database and back, as files of Keras."""

import functools

from mop_udf import aggregate
from pg_mop.api.architectures import append
from pg_mop.api.evaluate import trainer_of
from pg_mop.api.model_table import StoredModel, trainer_options
from pg_mop.database import MopError, sql_function


def mop_export_model(plpy, GD, *arguments):
    """See :func:`_export`; GD is the session's dictionary, which holds its trainer."""
    export = functools.partial(_export, session=aggregate.session(plpy, GD))
    return sql_function(functools.update_wrapper(export, mop_export_model))(plpy, *arguments)


def _export(db, model_table, mst_key, session):
    """The bytes of a .keras file of a trained model."""
    model = StoredModel(db, model_table, mst_key)
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send({"op": "model", "architecture": model.architecture_text}, model.weights)
        trainer.receive()
        trainer.send({"op": "export"})
        _, (data,) = trainer.receive()
    return bytes(data)


def mop_import_model(plpy, GD, *arguments):
    """See :func:`_import`; GD is the session's dictionary, which holds its trainer."""
    import_ = functools.partial(_import, session=aggregate.session(plpy, GD))
    return sql_function(functools.update_wrapper(import_, mop_import_model))(plpy, *arguments)


def _import(db, model_arch_table, data, name, description, session):
    """Append the architecture and weights of a .keras file (bytes) to an architecture table; returns its model_id."""
    if data is None:
        raise MopError("the file must not be NULL", hint="It takes the bytes of a .keras file.")
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send({"op": "import"}, data)
        header, (weights,) = trainer.receive()
    return append(db, model_arch_table, header["architecture"], bytes(weights), name, description)
