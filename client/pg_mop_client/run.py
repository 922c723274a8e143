"""A run: its results as DataFrames, its models and its report."""

import contextlib
import html
import json
import operator
import os
import re
import tempfile
import uuid
from collections.abc import Iterable
from typing import Any

import pandas
import sqlalchemy
from sqlalchemy import text

from pg_mop_client import packing, reading
from pg_mop_client.database import connected, driver_errors, exists, frame, plain, quote, quote_table, suffixed
from pg_mop_client.errors import ClientError, needed
from pg_mop_client.server import Server
from pg_mop_client.watching import printable

OF_CLASSES = ("categoricalcrossentropy", "categoricalfocalcrossentropy", "categoricalhinge", "kldivergence", "kld")
CAP = 1000  # rows of a DataFrame by default
SHOWN = 10  # configurations in a notebook's short view


def whole(run_id: Any) -> int:
    """A run's number as an integer. Raises ClientError."""
    try:
        number = operator.index(run_id)
    except TypeError:
        number = 0
    if not 0 < number < 1 << 63:
        raise ClientError(f"run_id must be the number of a run, not {run_id!r}", hint="runs() lists all runs.")
    return number


def written(page: str, path: str | os.PathLike[str]) -> str:
    """Write a report to a file, and return its path. Raises ClientError."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise ClientError(f"the report cannot be written to {path}: {error.strerror}") from None
    return str(path)


def _classes(values: pandas.Series, kind: str) -> pandas.Series:
    """Classes in the server's spelling, converted for the SQL type `kind` of the label; for vectors, positions."""
    if kind == "boolean":
        values = values.map({"true": True, "false": False}).astype("boolean")
        kind = "bool"
    elif kind in ("smallint", "integer", "bigint") or kind.endswith("[]"):
        values = pandas.Series([int(v) if isinstance(v, str) else None for v in values], values.index, "Int64")
        kind = "int64"
    elif kind in ("real", "double precision"):
        return pandas.Series([float(v) if isinstance(v, str) else None for v in values], values.index, "float64")
    else:
        return values
    return values if values.isna().any() else values.astype(kind)


class Shown:
    """A report in a notebook."""

    def __init__(self, page: str, height: int) -> None:
        """`page`: the HTML of the report; `height`: pixels."""
        self.page, self.height = page, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


class Run:
    """A run that the role may see. Every method reads the present state, so that it also serves a running run."""

    run_id: int
    function: str
    models: str

    def __init__(self, selection: Server, run_id: int | None = None) -> None:
        """`run_id` None: the latest run. Raises ClientError if the role sees no such run."""
        self.selection, self._schema = selection, plain(quote(selection.schema))
        if run_id is not None:
            run_id = whole(run_id)
        with connected(selection.engine) as connection:
            row = connection.execute(
                text(
                    f"SELECT run_id, function, model_output_table FROM {self._schema}.mop_runs WHERE run_id = "
                    f"coalesce(CAST(:run AS bigint), (SELECT max(run_id) FROM {self._schema}.mop_runs))"
                ),
                {"run": run_id},
            ).one_or_none()
        if row is None:
            raise ClientError(
                "the role has no runs" if run_id is None else f"there is no run {run_id} that the role may see",
                hint=f"SELECT run_id, status FROM {quote(selection.schema)}.mop_runs;",
            )
        self.run_id, self.function, self.models = row.run_id, row.function, row.model_output_table

    def __repr__(self) -> str:
        try:
            status = self.info.status
        except ClientError as error:  # (a notebook or a debugger must be able to show the object)
            status = error.message.partition("\n")[0]
        return f"<run {self.run_id} into {printable(self.models)}: {status}>"

    def _repr_html_(self) -> str:
        try:
            board = self.leaderboard()
        except ClientError:
            return f"<p>{html.escape(repr(self))}</p>"
        more = f"<p>{len(board) - SHOWN} more: leaderboard()</p>" if len(board) > SHOWN else ""
        return (
            f"<p>{html.escape(repr(self))}</p>"
            + board.head(SHOWN).dropna(axis=1, how="all").to_html(index=False, escape=True, notebook=True)
            + more
        )

    # --- results -----------------------------------------------------------------------------------------
    @property
    def info(self) -> Any:
        """The run's row of mop_runs. Raises ClientError if the run has been dropped."""
        found = self._frame("mop_runs")
        if found.empty:
            raise ClientError(f"run {self.run_id} has been dropped")
        return found.iloc[0]

    @property
    def data(self) -> dict[str, Any]:
        """The data of the report: configurations with parameters and ranks, curves, sessions, stages.

        The data of a large run are sampled, and data['sampled'] describes the sample.
        """
        with connected(self.selection.engine) as connection:
            return json.loads(
                connection.execute(
                    text(f"SELECT {self._schema}.mop_report(:run, 'json')"), {"run": self.run_id}
                ).scalar_one()
            )

    def explain(self) -> str:
        """The text of mop_explain_run: the expected and the actual time of the run."""
        with connected(self.selection.engine) as connection:
            return str(
                connection.execute(
                    text(f"SELECT {self._schema}.mop_explain_run(:run)"), {"run": self.run_id}
                ).scalar_one()
            )

    def leaderboard(self, data: dict[str, Any] | None = None) -> pandas.DataFrame:
        """The configurations, best first, with parameters, last values, seconds, and the reason of an early end."""
        data = data or self.data
        return pandas.DataFrame(
            [
                {
                    "rank": c["rank"],
                    "mst_key": c["mst_key"],
                    "status": c["status"],
                    **{name: c["parameters"].get(name) for name in data["varied"]},
                    **c["last"],
                    f"best {data['measure']['series']}": c["best"],
                    "iterations": c["iterations"],
                    "training seconds": c["seconds"],
                    "reason": c["reason"],
                }
                for c in data["configurations"]
            ]
        )

    def metrics(self, cap: int | None = 100 * CAP) -> pandas.DataFrame:
        """Every loss and metric, in long form: mst_key, iteration, dataset, name, value."""
        return self._frame("mop_metrics", cap, "mst_key, iteration, dataset, name")

    def units(self, cap: int | None = 100 * CAP) -> pandas.DataFrame:
        """The attempts at units, in the order of their start: session, times, kernel, loss, error."""
        return self._frame("mop_units", cap, "started_at, mst_key, segment, attempt")

    def trials(self, cap: int | None = CAP) -> pandas.DataFrame:
        """The rows of mop_trials: the state and result of each configuration."""
        return self._frame("mop_trials", cap, "mst_key")

    def _frame(self, view: str, cap: int | None = None, order: str = "run_id") -> pandas.DataFrame:
        with connected(self.selection.engine) as connection:
            return frame(
                connection,
                f"SELECT * FROM {self._schema}.{view} WHERE run_id = :run ORDER BY {order}",
                cap,
                run=self.run_id,
            )

    def best(self) -> Any:
        """The leaderboard's first row. Raises ClientError if no configuration has a result."""
        data = self.data
        board = self.leaderboard(data)
        if board.empty or pandas.isna(board.iloc[0].get(data["measure"]["series"])):
            raise ClientError(f"no configuration of run {self.run_id} has a result yet")
        return board.iloc[0]

    def resume(self) -> "Run":
        """Continue the run after it was cancelled or has failed."""
        return self.selection.mop_resume(self.run_id)

    def replay(self, models: str) -> Any:
        """Train the run again by its log, as a new run into table `models` and those that belong to it: the Run."""
        return self.selection.mop_replay(self.run_id, models)

    # --- models ------------------------------------------------------------------------------------------
    def _mst_key(self, mst_key: Any) -> int | None:
        """The number of a configuration, by default the best; None for madlib_keras_fit. Raises ClientError."""
        if self.function == "madlib_keras_fit":
            return None
        try:
            return int(self.best().mst_key if mst_key is None else mst_key)
        except (TypeError, ValueError):
            raise ClientError(
                f"mst_key must be the number of a configuration, not {mst_key!r}",
                hint="trials() lists all configurations.",
            ) from None

    def _models_table(self) -> str:
        """The name of the run's model table.

        Raises ClientError if a later run has replaced the table, or if the table with this name or its summary belongs to
        another role than the run: that role's run may have written to another schema, and a view of another role's would
        execute with the caller's rights.
        """
        with connected(self.selection.engine) as connection:
            later = connection.execute(
                text(
                    f"SELECT l.run_id FROM {self._schema}.mop_runs r JOIN {self._schema}.mop_runs l USING "
                    f"(owner, model_output_table) WHERE r.run_id = :run AND l.status = 'finished' AND l.finished_at > "
                    f"r.finished_at ORDER BY l.finished_at DESC LIMIT 1"
                ),
                {"run": self.run_id},
            ).scalar()
            other = connection.execute(
                text(
                    "SELECT o.rolname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles o ON o.oid = c.relowner "
                    "WHERE c.oid IN (pg_catalog.to_regclass(:name), pg_catalog.to_regclass(:summary)) "
                    "AND o.rolname <> :owner AND (:owner <> session_user OR o.rolname <> current_user AND NOT o.rolsuper)"
                ),
                {
                    "name": quote_table(self.models),
                    "summary": quote_table(suffixed(self.models, "_summary")),
                    "owner": self.info["owner"],
                },
            ).scalar()
        if later is not None:
            raise ClientError(
                f"table {self.models} has the models of run {later}, trained after run {self.run_id}",
                hint=f"run({later})",
            )
        if other is not None:
            raise ClientError(
                f"table {self.models} of the search_path belongs to role {other}, but run {self.run_id} to "
                f"role {self.info['owner']}",
                hint="madlib_keras_predict accepts the name with its schema.",
            )
        return self.models

    @driver_errors()
    def predict(
        self, data: Any, mst_key: Any = None, pred_type: Any = "response", features: Any = None, **pictures: Any
    ) -> pandas.Series | pandas.DataFrame:
        """Predict with a model, by default the best. The result has the index of the data.

        `pred_type` 'response' gives a Series; 'prob' or a number of best classes gives a DataFrame. For 'response',
        classes are numbers or booleans if the label's column had such a type, else text, and missing for NULL. A
        regression model gives a Series of numbers, or a DataFrame if it has several outputs.

        `data`: a DataFrame, an array, or a path that pack accepts. For a folder of pictures, `pictures` are `size` and
        `mode` of pack, and the index is the path in the folder. `features`: as in pack; None: the packed features.
        Raises ClientError.
        """
        if not isinstance(data, (pandas.DataFrame, *reading.PATHS)):
            if not hasattr(data, "__len__"):
                raise ClientError(f"rows are a DataFrame, an array or a path, not {type(data).__name__}")
            data = pandas.DataFrame({"x": list(data)})
        data = reading.whole(data, **pictures)
        models = self._models_table()
        calls = self.selection.calls
        connection, mst_key = calls.connection(), self._mst_key(mst_key)
        summary = suffixed(models, "_summary")
        if not exists(connection, summary):
            raise ClientError(
                f"table {models} has no models",
                hint=(
                    f"mop_replay({self.run_id}, 'another_table') trains the models again."
                    if self.info.status == "finished"
                    else f"run({self.run_id}).info.status shows the state of the run."
                ),
            )
        row = connection.execute(
            text(
                f"SELECT independent_varname AS inputs, source_table, dependent_vartype AS types, "
                f"to_json(s) ->> 'dependent_dtype' AS packed_as FROM {plain(quote_table(summary))} AS s"
            )
        ).one()
        if len(row.inputs) > 1:
            raise ClientError(
                f"the model has {len(row.inputs)} inputs", hint="madlib_keras_predict predicts for the rows of a table."
            )
        name = f"mop_rows_{uuid.uuid4().hex[:8]}"
        features = features or self._packed_features(connection, row.source_table, row.inputs[0], data)
        try:
            _, array, _ = packing.copy(connection, data, name, None, features, temporary=True)
            self.selection.madlib_keras_predict(
                models, f"pg_temp.{name}", "id", quote(array), f"pg_temp.{name}_out", pred_type, mst_key=mst_key
            )
            found = frame(
                connection,
                f"SELECT * FROM pg_temp.{name}_out ORDER BY id, "
                f"{'class_name' if str(pred_type) == 'response' else 'rank'}",
            )
        finally:
            with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
                connection.execute(text(f"DROP TABLE IF EXISTS pg_temp.{name}, pg_temp.{name}_out"))
        if str(pred_type) == "response" and found.class_name.nunique() == 1:
            if row.packed_as == "float32" and not self._is_of_classes(mst_key):
                if found.class_value.isna().all():  # one number
                    values = found.set_index("id").prob.rename(found.class_name.iloc[0])
                else:
                    values = found.pivot(index="id", columns="class_value", values="prob").rename_axis(columns=None)
            else:
                values = _classes(found.class_value, row.types[0]).rename(found.class_name.iloc[0])
                values.index = found.id
            return values.set_axis(data.index[values.index])
        found.index = data.index[found.pop("id")]
        return found

    def _is_of_classes(self, mst_key: int | None) -> bool:
        """True if a model predicts classes although its label was packed as numbers, as for soft labels."""
        said = self.trials(cap=None)
        said = said[said.mst_key == mst_key] if mst_key is not None else said
        loss = re.search(r"\bloss\s*=\s*['\"]([^'\"]*)", said.compile_params.iloc[0])
        return loss is not None and loss[1].lower().replace("_", "") in OF_CLASSES

    def _packed_features(
        self, connection: sqlalchemy.Connection, packed: str, column: str, data: pandas.DataFrame
    ) -> list[str]:
        """The names of the packed features: those of the comment that packing.note has written, else the column itself.

        Raises ClientError without such a comment, and if the table has been packed again since the run.
        """
        names, packed_at = packing.noted(connection, packed, column)
        if (
            names is not None
            and connection.execute(
                text(f"SELECT extract(epoch FROM started_at) < :at FROM {self._schema}.mop_runs WHERE run_id = :run"),
                {"at": packed_at, "run": self.run_id},
            ).scalar()
        ):
            names = None
        if column in data.columns and names in (None, [column]):
            return [column]
        if list(data.columns) == ["x"] and "x" not in (names or ()):
            return ["x"]
        if names is None:
            raise ClientError(
                f"the data have no column {column!r}, and which columns were packed is not known",
                hint="features=[...], in the order of packing",
            )
        return names

    def export(self, mst_key: Any = None) -> bytes:
        """The bytes of a .keras file with a model, by default the best."""
        parts = self.selection.calls.execute(  # (a file may be larger than one value of PostgreSQL)
            f"SELECT data FROM {self._schema}.mop_export_parts(:models, :mst_key) ORDER BY part",
            {"models": self._models_table(), "mst_key": self._mst_key(mst_key)},
        )
        return b"".join(bytes(row.data) for row in parts)

    def to_keras(self, mst_key: Any = None) -> Any:
        """A live Keras model, by default of the best configuration. Raises ClientError without Keras."""
        saving = needed("keras.saving", "keras")
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.keras")
            with open(path, "wb") as file:
                file.write(self.export(mst_key))
            return saving.load_model(path)

    # --- report -----------------------------------------------------------------------------
    def report(self, path: str | os.PathLike[str] | None = None, mst_keys: Iterable[int] | None = None) -> str:
        """Write the report, an HTML file, to `path` and return the path; None: return the text of the report.

        `mst_keys`: only these configurations.
        """
        with connected(self.selection.engine) as connection:
            page = connection.execute(
                text(f"SELECT {self._schema}.mop_report(:run, 'html', CAST(:keys AS integer[]))"),
                {"run": self.run_id, "keys": None if mst_keys is None else [int(key) for key in mst_keys]},
            ).scalar_one()
        return page if path is None else written(page, path)

    def show(self, height: int = 800) -> "Shown":
        """The report with its pictures, for the output of a cell of a notebook. `height`: pixels."""
        return Shown(self.report(), height)

    # --- other tools -------------------------------------------------------------------------------------
    def to_optuna(self, storage: Any = None, study_name: str | None = None) -> Any:
        """An Optuna study with a trial for each configuration: bridges.to_optuna."""
        from pg_mop_client import bridges

        return bridges.to_optuna(self, storage, study_name)

    def log_to_mlflow(self, experiment: str | None = None, models: int = 1) -> str:
        """MLflow runs with parameters, metrics by step and models: bridges.log_to_mlflow."""
        from pg_mop_client import bridges

        return bridges.log_to_mlflow(self, experiment, models)

    def to_tensorboard(self, directory: str | os.PathLike[str]) -> str:
        """TensorBoard's event files: bridges.to_tensorboard."""
        from pg_mop_client import bridges

        return bridges.to_tensorboard(self, directory)
