"""A run: its results as DataFrames, its models, its pictures and its report."""

import contextlib
import html
import json
import operator
import os
import re
import tempfile
import uuid

import pandas
import sqlalchemy
from sqlalchemy import text

from pg_mop_client import packing, reading
from pg_mop_client.database import connected, exists, frame, plain, quote, quote_table, suffixed, told
from pg_mop_client.errors import ClientError, needed
from pg_mop_client.watching import printable

OF_CLASSES = ("categoricalcrossentropy", "categoricalfocalcrossentropy", "categoricalhinge", "kldivergence", "kld")
CAP = 1000  # rows of a DataFrame, where nothing else is said
SHOWN = 10  # configurations in a notebook's short view


def whole(run_id):
    """A run's number. Raises ClientError."""
    try:
        number = operator.index(run_id)
    except TypeError:
        number = 0
    if not 0 < number < 1 << 63:
        raise ClientError(f"a run has a number, which {run_id!r} is not", hint="runs() lists all.")
    return number


def _classes(values, kind):
    """Classes as the server writes them, of a column of an SQL type; of vectors they are places."""
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


class Run:
    """A run that the role may see. What it gives is read anew each time, so that it is also of a run that goes on."""

    def __init__(self, selection, run_id=None):
        """`run_id` None: the latest. Raises ClientError where there is no such run."""
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

    def __repr__(self):
        try:
            status = self.info.status
        except ClientError as error:  # (what shows it must not fail)
            status = error.message.partition("\n")[0]
        return f"<run {self.run_id} into {printable(self.models)}: {status}>"

    def _repr_html_(self):
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

    # --- what it did -------------------------------------------------------------------------------------
    @property
    def info(self):
        """The run's row of mop_runs. Raises ClientError where it has been dropped."""
        found = self._frame("mop_runs")
        if found.empty:
            raise ClientError(f"run {self.run_id} has been dropped")
        return found.iloc[0]

    @property
    def data(self):
        """What its report is made of, a dictionary: configurations with their parameters and ranks, curves, sessions,
        stages. Of a large run it is sampled, and data['sampled'] says how."""
        with connected(self.selection.engine) as connection:
            return json.loads(
                connection.execute(
                    text(f"SELECT {self._schema}.mop_report(:run, 'json')"), {"run": self.run_id}
                ).scalar()
            )

    def leaderboard(self, data=None):
        """The configurations as a DataFrame, the best first: parameters, last values, seconds, why each ended."""
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

    def metrics(self, cap=100 * CAP):
        """Every loss and metric, in long form: mst_key, iteration, dataset, name, value."""
        return self._frame("mop_metrics", cap, "mst_key, iteration, dataset, name")

    def units(self, cap=100 * CAP):
        """The attempts at units, as they began: session, times, kernel, loss, error."""
        return self._frame("mop_units", cap, "started_at, mst_key, segment, attempt")

    def trials(self, cap=CAP):
        """What became of each configuration."""
        return self._frame("mop_trials", cap, "mst_key")

    def _frame(self, view, cap=None, order="run_id"):
        with connected(self.selection.engine) as connection:
            return frame(
                connection,
                f"SELECT * FROM {self._schema}.{view} WHERE run_id = :run ORDER BY {order}",
                cap,
                run=self.run_id,
            )

    def best(self):
        """The leaderboard's first row. Raises ClientError where no configuration has a result."""
        data = self.data
        board = self.leaderboard(data)
        if board.empty or pandas.isna(board.iloc[0].get(data["measure"]["series"])):
            raise ClientError(f"no configuration of run {self.run_id} has a result yet")
        return board.iloc[0]

    def resume(self):
        """Go on with the run, where it was cancelled or failed."""
        return self.selection.mop_resume(self.run_id)

    # --- its models --------------------------------------------------------------------------------------
    def _mst_key(self, mst_key):
        if self.function == "madlib_keras_fit":
            return None
        try:
            return int(self.best().mst_key if mst_key is None else mst_key)
        except (TypeError, ValueError):
            raise ClientError(
                f"a configuration has a number, which {mst_key!r} is not", hint="trials() lists all."
            ) from None

    def _its_models(self):
        """The name of the table of its models. Raises ClientError where a later run has written one of that name, or
        the table of that name is another role's: a run of somebody else may have been of another schema."""
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
                    "SELECT pg_catalog.pg_get_userbyid(relowner) FROM pg_catalog.pg_class WHERE oid = "
                    "pg_catalog.to_regclass(:name) AND :owner <> session_user AND :owner <> pg_catalog.pg_get_userbyid("
                    "relowner)"
                ),
                {"name": quote_table(self.models), "owner": self.info["owner"]},
            ).scalar()
        if later is not None:
            raise ClientError(
                f"table {self.models} has the models of run {later}, which was trained after run {self.run_id}",
                hint=f"run({later})",
            )
        if other is not None:
            raise ClientError(
                f"table {self.models}, as it is found here, is of role {other}, and run {self.run_id} of "
                f"role {self.info['owner']}",
                hint="madlib_keras_predict takes the name with its schema.",
            )
        return self.models

    @told()
    def predict(self, data, mst_key=None, pred_type="response", features=None, **pictures):
        """Predict with a model, by default the best: for 'response' a Series, for 'prob' or a number of best classes
        a DataFrame, by the index of the data.

        For 'response' classes are numbers or truth values where the packed column was of such a type, else text, and
        missing where the class is NULL; of a regression model it is the numbers, of several a DataFrame.

        `data`: a DataFrame, an array, or the path of what pack takes; of a folder of pictures `pictures` are the `size`
        and `mode` of pack, and the index their paths in it. `features`: as in pack; None: those that were packed.
        Raises ClientError.
        """
        if not isinstance(data, (pandas.DataFrame, *reading.PATHS)):
            if not hasattr(data, "__len__"):
                raise ClientError(f"rows are a DataFrame, an array or a path, and not {type(data).__name__}")
            data = pandas.DataFrame({"x": list(data)})
        data = reading.whole(data, **pictures)
        models = self._its_models()
        calls = self.selection.calls
        connection, mst_key = calls.connection(), self._mst_key(mst_key)
        summary = suffixed(models, "_summary")
        if not exists(connection, summary):
            raise ClientError(
                f"table {models} has no models",
                hint=(
                    f"mop_replay({self.run_id}, 'another_table') trains them again."
                    if self.info.status == "finished"
                    else f"run({self.run_id}).info.status tells of the run."
                ),
            )
        row = connection.execute(
            text(
                f"SELECT independent_varname AS inputs, source_table, dependent_vartype AS types, "
                f"to_json(s) ->> 'dependent_dtype' AS packed_as FROM {plain(quote_table(summary))} AS s"
            )
        ).one()
        if len(row.inputs) > 1:
            raise ClientError(f"the model has {len(row.inputs)} inputs", hint="madlib_keras_predict takes a table.")
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
                values.attrs["regression"] = True
            else:
                values = _classes(found.class_value, row.types[0]).rename(found.class_name.iloc[0])
                values.index = found.id
            return values.set_axis(data.index[values.index])
        found.index = data.index[found.pop("id")]
        return found

    def _is_of_classes(self, mst_key):
        """True where a model that was packed with numbers tells classes all the same, as by soft labels."""
        said = self.trials(cap=None)
        said = said[said.mst_key == mst_key] if mst_key is not None else said
        loss = re.search(r"\bloss\s*=\s*['\"]([^'\"]*)", said.compile_params.iloc[0])
        return loss is not None and loss[1].lower().replace("_", "") in OF_CLASSES

    def _packed_features(self, connection, packed, column, data):
        """The columns that `column` was packed from: as the client noted them, else the column itself. Raises
        ClientError where nobody knows, or other rows are packed there now."""
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
                hint="features=[...], in the order in which they were packed",
            )
        return names

    def export(self, mst_key=None):
        """The bytes of a .keras file of a model, by default the best."""
        return self.selection.mop_export_model(self._its_models(), self._mst_key(mst_key))

    def to_keras(self, mst_key=None):
        """A live Keras model, by default of the best configuration. Raises ClientError without Keras."""
        saving = needed("keras.saving", "keras")
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.keras")
            with open(path, "wb") as file:
                file.write(self.export(mst_key))
            return saving.load_model(path)

    # --- to look at --------------------------------------------------------------------------------------
    def report(self, path=None, mst_keys=None):
        """The report, one HTML file, into `path`, whose name is returned; None: its text. `mst_keys`: of these
        configurations alone."""
        with connected(self.selection.engine) as connection:
            page = connection.execute(
                text(f"SELECT {self._schema}.mop_report(:run, 'html', CAST(:keys AS integer[]))"),
                {"run": self.run_id, "keys": None if mst_keys is None else [int(key) for key in mst_keys]},
            ).scalar()
        if path is None:
            return page
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(page)
        except OSError as error:
            raise ClientError(f"the report cannot be written to {path}: {error.strerror}") from None
        return str(path)

    def plot_curves(self, series=None, ax=None):
        """Learning curves of a series, such as 'validation loss' (None: that which ranks); matplotlib's Axes."""
        return self._plots().curves(self.data, series, ax)

    def plot_leaderboard(self, most=20, ax=None):
        """The best configurations as bars; matplotlib's Axes."""
        return self._plots().leaderboard(self.data, most, ax)

    def plot_parallel(self, ax=None):
        """Parameters and results as parallel coordinates; matplotlib's Axes."""
        return self._plots().parallel(self.data, ax)

    def plot_sessions(self, mst_keys=None, ax=None):
        """What the worker sessions did, by time, and the hops of the configurations `mst_keys`, by default of the best;
        matplotlib's Axes."""
        return self._plots().sessions(self.data, mst_keys, ax)

    def plot_stages(self, ax=None):
        """The tree of stages; matplotlib's Axes."""
        return self._plots().stages(self.data, ax)

    def plot_confusion(self, data, label=None, mst_key=None, features=None, ax=None, **pictures):
        """How often each class was predicted as which, by a model, by default the best; matplotlib's Axes.

        `data`: what pack takes, a DataFrame, a pair of arrays, a path; `label`: the column of the classes, as in pack;
        `features` and `pictures` as in predict. Raises ClientError.
        """
        plots, label = self._plots(), label or reading.label_of(data)
        data = reading.whole(data, **pictures)
        if label is None:
            raise ClientError("label=... is missing: the column of classes")
        if label not in data.columns:
            raise ClientError(f"there is no column {label!r}", hint=f"There are {reading.few(data.columns)}.")
        if not len(data):
            raise ClientError("there are no rows to predict for")
        found = self.predict(data.drop(columns=label), mst_key, features=features)
        if found.attrs.get("regression"):
            raise ClientError("the model predicts numbers, not classes")
        if not isinstance(found, pandas.Series):
            raise ClientError("the model has several outputs", hint="plots.confusion(actual, predicted) takes any two.")
        return plots.confusion(data[label], found, f"run {self.run_id}: {self.models}", ax)

    @staticmethod
    def _plots():
        needed("matplotlib", "plot")
        from pg_mop_client import plots

        return plots

    # --- to other tools ----------------------------------------------------------------------------------
    def to_optuna(self, storage=None, study_name=None):
        """An Optuna study with a trial for each configuration: bridges.to_optuna."""
        from pg_mop_client import bridges

        return bridges.to_optuna(self, storage, study_name)

    def log_to_mlflow(self, experiment=None, models=1):
        """MLflow runs with parameters, metrics by step and models: bridges.log_to_mlflow."""
        from pg_mop_client import bridges

        return bridges.log_to_mlflow(self, experiment, models)

    def to_tensorboard(self, directory):
        """TensorBoard's event files: bridges.to_tensorboard."""
        from pg_mop_client import bridges

        return bridges.to_tensorboard(self, directory)
