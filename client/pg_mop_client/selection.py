"""Selection: pg_mop on one server, with its SQL functions as methods."""

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import pandas
import sqlalchemy

from pg_mop_client import packing, reading, tables
from pg_mop_client.database import (
    Where,
    connected,
    exists,
    frame,
    literal,
    plain,
    quote,
    quote_table,
    suffixed,
    where_made,
)
from pg_mop_client.errors import ClientError
from pg_mop_client.model import Model
from pg_mop_client.plan import CallPlan
from pg_mop_client.run import CAP, Run
from pg_mop_client.server import Server
from pg_mop_client.spaces import ServerSpace

# arguments of the preprocessors that pack sets
PACKS_ITSELF = {
    "source_table",
    "output_table",
    "dependent_varname",
    "independent_varname",
    "training_preprocessor_table",
}

TRAINS_A_MODEL = ("mop_train", "mop_retrain")


class Selection(Server):
    """pg_mop on a server.

    `where`: an SQLAlchemy engine (for psycopg2), a URI, or libpq's parameters; '': connect as psql does, by PGHOST,
    PGSERVICE and so on. `schema`: the required schema of the extension; None: any schema. `progress`: show progress
    bars. `settings`: settings of pg_mop, such as seed=42.

    Every SQL function is a method with the same name and arguments; its documentation comes from the server. A function
    that trains shows a progress bar, is cancelled by Ctrl-C, and returns a :class:`Run`. Another function that returns
    rows gives a DataFrame.

    Raises ClientError if the extension is missing, too old, in another schema, or not granted to the role. Like all
    methods, it raises LostError without a connection, and ServerError for an error of the server, such as an unknown
    setting.
    """

    def __init__(self, where: Where = "", schema: str | None = None, progress: bool = True, **settings: Any) -> None:
        self.progress = progress
        super().__init__(where, schema, settings)

    def _call(self, function: Any, statement: str, values: Mapping[str, Any], form: Any) -> Any:
        """Execute an SQL function; `function` is its row of mop_functions, `form` the overloaded form."""
        if function.trains:
            run_id = self.calls.watched(statement, values, self.progress)
            if run_id is None:
                raise ClientError(
                    f"{function.name} has ended, but its run was not found", hint="runs() lists all runs."
                )
            return self.run(run_id)
        if function.name in TRAINS_A_MODEL and values.get("name") is not None:
            return self.calls.trained(statement, values, str(values["name"]), values.get("time_limit"), self.progress)
        if form.is_set:
            with connected(self.engine) as connection:
                return frame(connection, statement, **values)
        result = self.calls.execute(statement, values)
        value = result.scalar() if result.returns_rows else None
        return bytes(value) if isinstance(value, memoryview) else None if value == "" else value

    # --- runs ------------------------------------------------------------------------------------------
    def fit_multiple(
        self,
        source_table: str,
        model_output_table: str,
        model_selection_table: str,
        num_iterations: int,
        validation_table: str | None = None,
        metrics_compute_frequency: int | None = 1,
        use_gpus: bool = False,
        **more: Any,
    ) -> Run:
        """Train the configurations of a model selection table. Returns a :class:`Run`.

        This is madlib_keras_fit_multiple_model (its documentation describes the arguments), by default with metrics
        after every iteration, for learning curves.
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

    def explain(self, call: str, /, *arguments: Any, **named: Any) -> CallPlan:
        """The plan and the expected time of a call that trains, by mop_explain: a text with data. Nothing is trained.

        `call`: SQL, or the name of a function, with its arguments: explain("mop_search", train, "found", "nets", space).
        Raises ServerError where the call would fail.
        """
        if "(" in call:
            if arguments or named:
                raise ClientError(
                    "the call has its arguments already", hint='explain("mop_search", "train_packed", ...)'
                )
            return self._plan(call)
        given = [literal(value) for value in arguments]
        given += [f"{quote(name)} => {literal(value)}" for name, value in named.items()]
        return self._plan(f"SELECT {quote(self.schema)}.{quote(call)}({', '.join(given)})")

    def _plan(self, call: str) -> CallPlan:
        return CallPlan(str(self.mop_explain(call)), lambda: json.loads(str(self.mop_explain(call, "json"))))

    def run(self, run_id: int | None = None) -> Run:
        """A run that the role may see; None: the run of this Selection's last call, else the latest run.

        Raises ClientError if the role sees no such run.
        """
        return Run(self, self.calls.last_run if run_id is None else run_id)

    def runs(self, cap: int | None = CAP) -> pandas.DataFrame:
        """The runs that the role may see as a DataFrame, the latest first."""
        return self.query(f"SELECT * FROM {plain(quote(self.schema))}.mop_runs ORDER BY run_id DESC", cap)

    def query(self, sql: str, cap: int | None = CAP, **values: Any) -> pandas.DataFrame:
        """The first `cap` rows of a query as a DataFrame; `:name` in the query stands for the value with that name.

        SQL's numeric columns become floats, and so do integer columns with NULLs.
        """
        sql = re.sub(r"(?<![:\w\\]):(\w+)", lambda at: at[0] if at[1] in values else "\\" + at[0], sql)
        with connected(self.engine) as connection:
            return frame(connection, sql, cap, **values)

    def table(self, name: str, cap: int | None = CAP) -> pandas.DataFrame:
        """The first `cap` rows of a table or view; `name` is in SQL's syntax."""
        return self.query(f"SELECT * FROM {plain(quote_table(name))}", cap)

    # --- ordinary tables ---------------------------------------------------------------------------------
    def load(
        self,
        data: pandas.DataFrame,
        table: str,
        key: str | None = None,
        replace: bool = False,
        images: str | Sequence[str] = (),
    ) -> str:
        """Write a DataFrame to a new table, without its index. Returns the name of the table.

        Each column gets the SQL type of its values (numbers, booleans, texts, dates, times, arrays, bytes, ...); missing
        values become NULL. `key`: the column of the primary key. `replace`: drop an existing table with this name. `images`:
        columns with paths of PNG and JPEG files on this machine, whose bytes are written. Raises ClientError for unsuitable
        data. An error leaves the database unchanged.
        """
        tables.checked(data)
        pictures = [images] if isinstance(images, str) else list(images)
        with self.calls.transaction() as connection:
            self._clear_names(connection, [table], replace, "load")
            tables.copy(connection, data, table, key, pictures=pictures)
        return table

    def train(self, source: str, name: str, target: str, time_limit: Any = "5 min", **more: Any) -> Model:
        """Train a model for a column of a table, view or query. Returns a :class:`Model`; its `training_report` is a text.

        This is mop_train (its documentation describes the arguments `more`). A progress bar shows the present step, the
        best loss and the time that is left; afterwards, the server's notices and warnings are printed. Ctrl-C cancels it.
        """
        if not isinstance(source, str):
            raise ClientError(
                f"source is a table, view or query, not {type(source).__name__}",
                hint="s.train(s.load(data, 'table'), ...) writes a DataFrame to a table first.",
            )
        report = self.mop_train(source, name, target=target, time_limit=time_limit, **more)
        return Model(self, name, training_report=report)

    def model(self, name: str, version: int | None = None) -> Model:
        """A named model that the role may read; `version` None: the version in use. Raises ClientError."""
        return Model(self, name, version)

    def models(self, cap: int | None = CAP) -> pandas.DataFrame:
        """The versions of all named models that the role may read."""
        return self.query(f"SELECT * FROM {plain(quote(self.schema))}.mop_models ORDER BY name, version", cap)

    # --- rows and models in ------------------------------------------------------------------------------
    def pack(
        self,
        data: Any,
        table: str,
        label: str | None = None,
        features: Any = None,
        validation_of: str | None = None,
        size: tuple[int, int] | None = None,
        mode: str | None = None,
        replace: bool = False,
        **more: Any,
    ) -> str:
        """Write rows to a new table and pack them. Returns the name of the packed table, `<table>_packed`.

        `data`: a DataFrame, a pair of arrays (x, y), the path of a .csv, .parquet or .npz file (with x and y), or the
        path of a folder of pictures with one folder for each class; pictures become the columns `pixels` and `label`.
        `size`: resize the pictures to (height, width); None: all have the same size already. `mode`: 'RGB' (default),
        'RGBA' or 'L' (grey).
        `label`: the column of classes, or of numbers with dependent_dtype='float32'. `features`: columns of numbers,
        or a single column of arrays; None: all columns of numbers except the label. `validation_of`: the packed training
        table that these rows validate; without `features`, its features are used, by name. `replace`: drop existing
        tables with these names. `more`: arguments of training_preprocessor_dl or validation_preprocessor_dl.

        Raises ClientError for unsuitable data. An error leaves the database unchanged.
        """
        pictures: dict[str, Any] = {
            name: value for name, value in (("size", size), ("mode", mode)) if value is not None
        }
        label = reading.label_of(data) if label is None else label
        if label is None:
            raise ClientError("label=... is missing: the column of classes")
        if own := PACKS_ITSELF & more.keys():
            raise ClientError(
                f"pack does not accept {min(own)}, because pack makes the table itself",
                hint="s.training_preprocessor_dl(...) packs an existing table.",
            )
        packed = suffixed(table, "_packed")
        more = {"source_table": table, "output_table": packed, **more}
        preprocessor: Any
        if validation_of is None:
            preprocessor = self.training_preprocessor_dl
        elif validation_of in (packed, table):
            raise ClientError(
                f"table {validation_of} cannot validate itself", hint="pack(..., another_name, validation_of=...)"
            )
        else:
            preprocessor, more["training_preprocessor_table"] = self.validation_preprocessor_dl, validation_of
        try:  # before any work
            preprocessor.bind(dependent_varname=None, independent_varname=None, **more)
        except TypeError as error:
            raise TypeError(f"pack(): {error}") from None
        with self.calls.transaction() as connection:
            self._clear_names(connection, [table, packed, suffixed(packed, "_summary")], replace)
            if validation_of is not None and features is None:
                features = self._features_of(connection, validation_of)
            written, array, columns = packing.copy(connection, data, table, label, features, **pictures)
            preprocessor(dependent_varname=quote(written or label), independent_varname=quote(array), **more)
            if columns != [array]:
                packing.note(connection, packed, array, columns)
        return packed

    def _clear_names(
        self, connection: sqlalchemy.Connection, names: list[str], replace: bool, method: str = "pack"
    ) -> None:
        """Ensure that no tables with these names exist; `replace` drops them. Raises ClientError."""
        for table in names:
            made = where_made(connection, table)  # (a table in another schema of the search_path does not matter)
            if exists(connection, made):
                if not replace:
                    raise ClientError(
                        f"table {made} already exists", hint=f"{method}(..., replace=True) drops it first."
                    )
                self.calls.execute(f"DROP TABLE {plain(made)}", {})

    def _features_of(self, connection: sqlalchemy.Connection, packed: str) -> list[str] | None:
        """The features' columns of a packed training table, or None if the client has not stored their names."""
        summary = suffixed(packed, "_summary")
        if not exists(connection, summary):
            return None  # (the preprocessor reports the missing table)
        inputs = self.calls.execute(f"SELECT independent_varname FROM {plain(quote_table(summary))}", {}).scalar_one()
        return packing.noted(connection, quote_table(packed), inputs[0])[0] if len(inputs) == 1 else None

    def space(self, name: str) -> ServerSpace:
        """A model space that the server has: its size, samples and text. `Space(...).create(s, ...)` makes one."""
        return ServerSpace(self, name)

    def from_keras(
        self, model: Any, table: str, name: str | None = None, description: str | None = None, weights: bool = False
    ) -> int:
        """Append a Keras model to an architecture table, or create the table. Returns the model's model_id.

        `weights`: store the model's weights, too, for further training or for predictions.
        """
        if not callable(getattr(model, "to_json", None)):
            raise ClientError(f"model must be a Keras model, not {type(model).__name__}")
        if weights:
            with tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "model.keras")
                model.save(path)
                with open(path, "rb") as file:
                    return self.mop_import_model(table, file.read(), name, description)
        self.load_keras_model(table, model.to_json(), None, name, description)
        return self.calls.execute(f"SELECT max(model_id) FROM {plain(quote_table(table))}", {}).scalar_one()
