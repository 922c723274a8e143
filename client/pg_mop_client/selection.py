"""Selection: pg_mop on one server, with its SQL functions as methods."""

import os
import re
import tempfile

import sqlalchemy

from pg_mop_client import packing, reading
from pg_mop_client.calling import Calls
from pg_mop_client.database import (
    connected,
    exists,
    find_extension,
    frame,
    make_engine,
    plain,
    quote,
    quote_table,
    suffixed,
    where_made,
)
from pg_mop_client.errors import ClientError, ServerError
from pg_mop_client.functions import methods
from pg_mop_client.run import CAP, Run

# arguments of the preprocessors that are pack's own
PACKS_ITSELF = {
    "source_table",
    "output_table",
    "dependent_varname",
    "independent_varname",
    "training_preprocessor_table",
}


class Selection:
    """pg_mop on a server.

    `where`: an SQLAlchemy engine (of psycopg2), a URI, or libpq's parameters; '': as psql connects, by PGHOST,
    PGSERVICE and the like. `schema`: the extension's, if it is to be a certain one. `progress`: show bars. `settings`:
    pg_mop's, such as seed=42.

    Every SQL function is a method of the same name, with the same arguments; its documentation is the server's own.
    What trains shows a progress bar, is cancelled by Ctrl-C, and returns a :class:`Run`; of the others, a function that
    returns rows gives a DataFrame.

    Raises ClientError: no extension, another schema, a version that is too old, a role that may not use it; as all of
    its methods, LostError where there is no connection, and ServerError for what the server says is wrong, such as a
    setting that it does not know.
    """

    def __init__(self, where="", schema=None, progress=True, **settings):
        self.engine, self.progress = make_engine(where), progress
        self._is_own = not isinstance(where, sqlalchemy.Engine)
        with connected(self.engine) as connection:
            self.schema = find_extension(connection, schema)
            for name, method in methods(connection, self.schema, self._call).items():
                setattr(self, name, method)
        self.calls = Calls(self.engine, self.schema, settings)
        try:
            self.calls.connection()
        except ServerError:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<pg_mop in schema {self.schema}: {self.calls.connection().connection.dbapi_connection.info.dbname}>"

    def close(self):
        """End the connections, and with them idle worker sessions. (Those of an engine that was given are its own.)"""
        self.calls.close()
        if self._is_own:
            self.engine.dispose()

    def set(self, **settings):
        """Set pg_mop's settings for the calls to come: set(seed=42, segments=2); None: back to the default."""
        self.calls.set(**settings)

    def _call(self, told, statement, values, form):
        if told.trains:
            run_id = self.calls.watched(statement, values, self.progress)
            if run_id is None:
                raise ClientError(f"{told.name} has ended, and its run was not found", hint="runs() lists all.")
            return self.run(run_id)
        if form.is_set:
            with connected(self.engine) as connection:
                return frame(connection, statement, **values)
        result = self.calls.execute(statement, values)
        value = result.scalar() if result.returns_rows else None
        return bytes(value) if isinstance(value, memoryview) else None if value == "" else value

    # --- runs ------------------------------------------------------------------------------------------
    def fit_multiple(
        self,
        source_table,
        model_output_table,
        model_selection_table,
        num_iterations,
        validation_table=None,
        metrics_compute_frequency=1,
        use_gpus=False,
        **more,
    ):
        """Train the configurations of a model selection table; a :class:`Run`.

        This is madlib_keras_fit_multiple_model, whose documentation has the arguments, with metrics after every
        iteration where nothing else is said, so that there are curves.
        """
        return self.madlib_keras_fit_multiple_model(
            source_table=source_table,
            model_output_table=model_output_table,
            model_selection_table=model_selection_table,
            num_iterations=num_iterations,
            use_gpus=use_gpus,
            validation_table=validation_table,
            metrics_compute_frequency=metrics_compute_frequency,
            **more,
        )

    def run(self, run_id=None):
        """A run that the role may see; None: that of this Selection's last call, else the latest. Raises ClientError
        where there is none."""
        return Run(self, self.calls.last_run if run_id is None else run_id)

    def runs(self, cap=CAP):
        """The role's runs as a DataFrame, the latest first."""
        return self.query(f"SELECT * FROM {plain(quote(self.schema))}.mop_runs ORDER BY run_id DESC", cap)

    def query(self, sql, cap=CAP, **values):
        """The rows of a query (:name stands for the value of that name) as a DataFrame, at most `cap` of them. What is
        numeric in SQL are floats there, and so are integers with NULLs among them."""
        sql = re.sub(r"(?<![:\w\\]):(\w+)", lambda at: at[0] if at[1] in values else "\\" + at[0], sql)
        with connected(self.engine) as connection:
            return frame(connection, sql, cap, **values)

    def table(self, name, cap=CAP):
        """The rows of a table or view, as its name is written in SQL."""
        return self.query(f"SELECT * FROM {plain(quote_table(name))}", cap)

    # --- rows and models in ------------------------------------------------------------------------------
    def pack(
        self, data, table, label=None, features=None, validation_of=None, size=None, mode=None, replace=False, **more
    ):
        """Write rows to a new table and pack them; returns the name of the packed table, `<table>_packed`.

        `data`: a DataFrame, a pair of arrays (x, y), the path of a .csv, .parquet or .npz file (with x and y), or that
        of a folder of pictures with a folder for each class, which become columns `pixels` and `label`. Of pictures
        `size` is (height, width), to which they are resized (None: all are of one size), `mode` 'RGB' (as without),
        'RGBA' or 'L' for grey.
        `label`: the column of classes, or with dependent_dtype='float32' of numbers. `features`: columns of numbers,
        or the one column that has arrays; None: all columns of numbers but the label. `validation_of`: the packed
        training table that these rows validate; without `features` its own are taken, by their names. `replace`: in
        place of tables of these names. `more`: the preprocessor's arguments (training_preprocessor_dl,
        validation_preprocessor_dl).

        Raises ClientError where the data are not like that. Where packing fails, all is as it was.
        """
        pictures = {name: value for name, value in (("size", size), ("mode", mode)) if value is not None}
        label = reading.label_of(data) if label is None else label
        if label is None:
            raise ClientError("label=... is missing: the column of classes")
        if own := PACKS_ITSELF & more.keys():
            raise ClientError(
                f"{min(own)} is not for pack, which makes the table itself",
                hint="s.training_preprocessor_dl(...) packs a table that is there.",
            )
        packed = suffixed(table, "_packed")
        more = {"source_table": table, "output_table": packed, **more}
        if validation_of is None:
            preprocessor = self.training_preprocessor_dl
        elif validation_of in (packed, table):
            raise ClientError(
                f"table {validation_of} cannot be packed by what is in itself",
                hint="pack(..., another_name, validation_of=...)",
            )
        else:
            preprocessor, more["training_preprocessor_table"] = self.validation_preprocessor_dl, validation_of
        try:  # before any work
            preprocessor.bind(dependent_varname=None, independent_varname=None, **more)
        except TypeError as error:
            raise TypeError(f"pack(): {error}") from None
        with self.calls.transaction() as connection:
            self._make_room(connection, [table, packed, suffixed(packed, "_summary")], replace)
            if validation_of is not None and features is None:
                features = self._features_of(connection, validation_of)
            label, array, columns = packing.copy(connection, data, table, label, features, **pictures)
            preprocessor(dependent_varname=quote(label), independent_varname=quote(array), **more)
            if columns != [array]:
                packing.note(connection, packed, array, columns)
        return packed

    def _make_room(self, connection, tables, replace):
        """There are no tables of these names, if need be by dropping them. Raises ClientError."""
        for table in tables:
            made = where_made(connection, table)  # (not one of that name in another schema of the search_path)
            if exists(connection, made):
                if not replace:
                    raise ClientError(
                        f"there is a table {made} already", hint="pack(..., replace=True) drops it first."
                    )
                self.calls.execute(f"DROP TABLE {plain(made)}", {})

    def _features_of(self, connection, packed):
        """The columns that a packed training table was made of, or None where the client has not noted them."""
        summary = suffixed(packed, "_summary")
        if not exists(connection, summary):
            return None  # (which the preprocessor tells)
        inputs = self.calls.execute(f"SELECT independent_varname FROM {plain(quote_table(summary))}", {}).scalar()
        return packing.noted(connection, quote_table(packed), inputs[0])[0] if len(inputs) == 1 else None

    def from_keras(self, model, table, name=None, description=None, weights=False):
        """Append a Keras model to an architecture table, which is made where it does not exist; returns its model_id.

        `weights`: with its weights, to go on from or to predict with.
        """
        if not callable(getattr(model, "to_json", None)):
            raise ClientError(f"a Keras model is wanted, not {type(model).__name__}")
        if weights:
            with tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "model.keras")
                model.save(path)
                with open(path, "rb") as file:
                    return self.mop_import_model(table, file.read(), name, description)
        self.load_keras_model(table, model.to_json(), None, name, description)
        return self.calls.execute(f"SELECT max(model_id) FROM {plain(quote_table(table))}", {}).scalar()
