"""A named model of the server: its answers for rows of ordinary tables, its reports as DataFrames, and their pictures."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pandas
import sqlalchemy
from sqlalchemy import text

from pg_mop_client import tables
from pg_mop_client.database import driver_errors, plain, quote, quote_table
from pg_mop_client.errors import ClientError, ServerError
from pg_mop_client.run import Shown, written
from pg_mop_client.server import Server
from pg_mop_client.watching import printable

LISTED = (
    "SELECT * FROM {}.mop_models WHERE pg_catalog.to_regclass(name) = pg_catalog.to_regclass(:name) ORDER BY version"
)
FEW_VALUES = 2000  # of a DataFrame that travels within the statement


class Model:
    """A named model that the role may read. All methods read its present state.

    `version`: the version that answers; None: the version in use. `training_report`: the text of the training that has made
    this object, or None.

    Methods take their rows as `data`: a DataFrame with the columns of the table (in any order, others are ignored), or, as
    text, a table, a view or a query of the server. Rows of a DataFrame go to the server in a temporary table; in columns of
    images, it may have paths of PNG and JPEG files on this machine.
    """

    def __init__(
        self, selection: Server, name: str, version: int | None = None, training_report: str | None = None
    ) -> None:
        """Raises ClientError if the role neither sees nor may ask such a model."""
        self.selection, self.name, self.version, self.training_report = selection, name, version, training_report
        self._schema = plain(quote(selection.schema))
        try:
            _ = self.info
        except ClientError:
            if not self._may_only_ask():
                raise

    def _may_only_ask(self) -> bool:
        """Whether the role may ask the model but not read its table."""
        quote_table(self.name)
        asked = (
            "SELECT pg_catalog.has_column_privilege(c.oid, 'tableoid', 'SELECT') AND NOT "
            "pg_catalog.has_table_privilege(c.oid, 'SELECT') FROM pg_catalog.pg_class c "
            "WHERE c.oid = pg_catalog.to_regclass(:name)"
        )
        return self._frame(asked, name=self.name).to_numpy().tolist() == [[True]]

    def __repr__(self) -> str:
        try:
            info = self.info
            shown = f"version {info.version} predicts {info.target} ({info.kind})"
        except ClientError as error:  # (a notebook or a debugger must be able to show the object)
            shown = error.message.partition("\n")[0]
        return f"<model {printable(self.name)}: {printable(shown)}>"

    # --- the model and its versions ----------------------------------------------------------------------
    @property
    def info(self) -> Any:
        """The version's row of mop_models: target, kind, metrics, owner. Raises ClientError if there is none."""
        found = self.versions()
        own = found[found.in_use if self.version is None else found.version == self.version]
        if own.empty:
            raise ClientError(
                f"model {self.name} has no version {self.version}"
                if len(found)
                else f"there is no model {self.name} that the role may read",
                hint=f"The versions are {', '.join(map(str, found.version))}."
                if len(found)
                else "models() lists all models.",
            )
        return own.iloc[0]

    def versions(self) -> pandas.DataFrame:
        """The rows of mop_models of this model, by version."""
        quote_table(self.name)  # (raises ClientError for what cannot be a name)
        return self._frame(LISTED.format(self._schema), name=self.name)

    def retrain(
        self, source: str | None = None, time_limit: str | None = None, automatic: bool = True, warm: bool = False
    ) -> str:
        """Train another version as the last one was trained (mop_retrain). Returns the text of the report.

        `source`: a table, view or query (None: as before). `automatic`: the version comes into use only if it is better.
        `warm`: training goes on from the version in use.
        """
        report: str = self.selection.mop_retrain(
            self.name, source=source, time_limit=time_limit, automatic=automatic, warm=warm
        )
        self.training_report = report
        return report

    def use_version(self, version: int) -> None:
        """Put a version into use."""
        self.selection.mop_use_version(self.name, version)

    def compare(self, first: int, second: int, data: Any) -> pandas.DataFrame:
        """The measures of two versions on the same rows: metric, first_value, second_value, difference."""
        with self._source(data) as source:
            return self._call("mop_compare", name=self.name, first=first, second=second, source=source)

    # --- answers -----------------------------------------------------------------------------------------
    def predict(self, data: Any, keep: str | None = None, probabilities: bool = False) -> pandas.DataFrame:
        """Answers: the columns prediction (of the target's type) and, for classes, probability, of the predicted class.

        For a DataFrame, the result has its index. `keep`: columns of a source on the server that the result has, too, such
        as 'id, name'. `probabilities`: add a column `probability of <class>` for each class. All rows come to the client:
        for large tables, mop_predict_into leaves them on the server. Raises ClientError.
        """
        number = f"mop_row_{uuid.uuid4().hex[:8]}"
        if is_frame := isinstance(data, pandas.DataFrame):
            if keep is not None:
                raise ClientError(
                    "keep is for a table, view or query of the server", hint="data.join(model.predict(data))"
                )
            found = self._answers_of_few(tables.typed(tables.checked(data)))
            if found is not None:
                return self._with_probabilities(found, probabilities)
            keep = number
        out = f"pg_temp.mop_answers_{uuid.uuid4().hex[:8]}"
        with self._source(data, number) as source:
            try:
                self._call(
                    "mop_predict_into", model=self.name, source=source, output=out, keep=keep, version=self.version
                )
                found = self._frame(f"SELECT * FROM {out}{f' ORDER BY {number}' if is_frame else ''}")
            finally:
                self._drop(out)
        if is_frame:
            found.index = data.index[found.pop(number)]
        return self._with_probabilities(found, probabilities)

    def _answers_of_few(self, data: pandas.DataFrame) -> pandas.DataFrame | None:
        """The answers for a DataFrame whose rows travel within the statement: no table is made.

        None where that is not possible: the DataFrame has many values, paths of images, or values that the model cannot take.
        """
        if not 0 < data.size <= FEW_VALUES:
            return None
        try:
            source = tables.query(data)
        except ClientError:
            return None
        try:
            found = self._call("mop_predict_few", model=self.name, source=source, version=self.version)
        except ServerError as error:
            if error.sqlstate != "42804":
                raise
            return None
        # the driver makes values of the target's type
        texts, sql_type = found.prediction.tolist(), found.pop("type").iloc[0]
        typed = self._frame(
            f"SELECT v::{sql_type} AS prediction FROM pg_catalog.unnest(CAST(:texts AS text[])) "
            "WITH ORDINALITY AS t(v, n) ORDER BY n",
            texts=texts,
        )
        found["prediction"] = typed.prediction
        found.index = data.index
        return found

    @staticmethod
    def _with_probabilities(found: pandas.DataFrame, probabilities: bool) -> pandas.DataFrame:
        """The answers, with the probabilities of all classes as columns if they are wanted."""
        each = found.pop("probabilities")
        if each.isna().all():  # numbers
            return found.drop(columns="probability")
        if probabilities:
            shares = pandas.DataFrame(list(each), index=found.index)
            found = found.join(shares.add_prefix("probability of "))
        return found

    # --- reports -----------------------------------------------------------------------------------------
    def report(self, data: Any = None, path: str | os.PathLike[str] | None = None) -> str:
        """Write the report, an HTML file, to `path` and return the path; None: return the text of the report.

        With `data`, the report has the measures, tables and pictures of these rows; without, what is stored with the
        versions. Raises ClientError.
        """
        page = self._whole(data, "html")
        return page if path is None else written(page, path)

    def show(self, data: Any = None, height: int = 800) -> Shown:
        """The report with its pictures, for the output of a cell of a notebook. `height`: pixels."""
        return Shown(self.report(data), height)

    def report_data(self, data: Any = None) -> dict[str, Any]:
        """The data of the report: sections with facts, tables, and descriptions of pictures."""
        return json.loads(self._whole(data, "json"))

    def evaluate(self, data: Any) -> pandas.DataFrame:
        """Measures on rows whose target is known: metric, value."""
        return self._report("mop_evaluate", data)

    def confusion_matrix(self, data: Any) -> pandas.DataFrame:
        """Row counts, with a line for each actual class and a column for each predicted class."""
        found = self._report("mop_confusion_matrix", data)
        names = list(dict.fromkeys(found.actual))  # (pivot would sort them)
        return found.pivot(index="actual", columns="predicted", values="row_count").loc[names, names]

    def class_report(self, data: Any) -> pandas.DataFrame:
        """Of each class: label, precision, recall, f1, support."""
        return self._report("mop_class_report", data)

    def regression_report(self, data: Any) -> pandas.DataFrame:
        """The errors in ten bands of the target: lowest, highest, row_count, means, mae, rmse, bias."""
        return self._report("mop_regression_report", data)

    def roc_curve(self, data: Any, label: str | None = None) -> pandas.DataFrame:
        """The ROC curve of a class (None: the second): threshold, false_positive_rate, true_positive_rate."""
        return self._report("mop_roc_curve", data, label=label)

    def calibration(self, data: Any, label: str | None = None) -> pandas.DataFrame:
        """Probabilities of a class (None: the second) and its share of the rows: probability, share, row_count."""
        return self._report("mop_calibration", data, label=label)

    def importance(self, data: Any, seed: int = 0) -> pandas.DataFrame:
        """The drop of accuracy or R2 when a column is permuted: column_name, importance, deviation; largest first."""
        return self._report("mop_importance", data, seed=seed)

    def explain_answer(
        self, data: pandas.DataFrame, label: str | None = None, background: Any = None, seed: int = 0
    ) -> pandas.DataFrame:
        """Why the rows of a DataFrame have their answers: column_name, value, contribution, deviation, with its index.

        `label`: the class whose log odds are explained (None: the answer). `background`: rows with which each is compared;
        None: those that the version was trained on.
        """
        number = f"mop_row_{uuid.uuid4().hex[:8]}"
        compared = contextlib.nullcontext(None) if background is None else self._source(background)
        with self._source(tables.checked(data), number) as rows, compared as source:
            found = self._frame(
                f"SELECT t.{number}, e.* FROM {rows} t, {self._schema}.mop_explain_answer("
                ":model, t, :label, :source, :version, :seed) e",
                **{"model": self.name, "label": label, "source": source, "version": self.version, "seed": seed},
            ).sort_values(number, kind="stable")
        found.index = data.index[found.pop(number)]
        return found

    def drift(self, data: Any) -> pandas.DataFrame:
        """How far columns are from those of training: column_name, stability, shares of NULL, verdict."""
        return self._report("mop_drift", data)

    def baselines(self, train: Any, test: Any) -> pandas.DataFrame:
        """Simple models trained on the rows `train`, and this model, measured on `test`: contender, metric, value."""
        with self._source(train) as own, self._source(test) as other:
            return self._call("mop_baselines", model=self.name, train=own, test=other, version=self.version)

    def feature_info(self) -> pandas.DataFrame:
        """What became of each column of the table: feature, elements, share of NULL, mean, lowest, highest, top values."""
        return self._call("mop_feature_info", model=self.name, version=self.version)

    # --- calls -------------------------------------------------------------------------------------------
    def _whole(self, data: Any, kind: str) -> str:
        """The report of mop_model_report."""
        with contextlib.nullcontext(None) if data is None else self._source(data) as source:
            return self._call(
                "mop_model_report", model=self.name, source=source, format=kind, version=self.version
            ).iloc[0, 0]

    def _report(self, function: str, data: Any, **more: Any) -> pandas.DataFrame:
        with self._source(data) as source:
            return self._call(function, model=self.name, source=source, version=self.version, **more)

    def _call(self, function: str, **values: Any) -> pandas.DataFrame:
        """The rows of a function, in the session of all calls."""
        listed = ", ".join(f"{quote(name)} => :{name}" for name in values)
        return self._frame(f"SELECT * FROM {self._schema}.{function}({listed})", **values)

    def _frame(self, statement: str, **values: Any) -> pandas.DataFrame:
        result = self.selection.calls.execute(statement, values)
        return pandas.DataFrame.from_records(
            [tuple(row) for row in result], columns=list(result.keys()), coerce_float=True
        )

    @contextlib.contextmanager
    def _source(self, data: Any, number: str | None = None) -> Iterator[str]:
        """The rows as a source of the server: a text as it is, a DataFrame as a temporary table of the `with` block.

        `number`: the name of a column with the position of each row of a DataFrame.
        """
        if isinstance(data, str):
            yield data
            return
        data = tables.typed(tables.checked(data))
        if not len(data.columns):
            raise ClientError("no column has a value", hint="Give a column a type: data.astype({'column': 'float64'})")
        # (a text column of NULLs would not fit; absent columns are NULL)
        pictures = self._pictures(data)
        name = f"mop_rows_{uuid.uuid4().hex[:8]}"
        try:
            with driver_errors():
                tables.copy(
                    self.selection.calls.connection(), data, name, numbered=number, temporary=True, pictures=pictures
                )
            yield f"pg_temp.{name}"
        finally:
            self._drop(f"pg_temp.{name}")

    def _pictures(self, data: pandas.DataFrame) -> list[str]:
        """The columns with paths of images: texts or paths, where the model was trained on images."""
        of = (str, os.PathLike)
        texts = [name for name in data.columns if isinstance(next(iter(data[name].dropna()), None), of)]
        if not texts:
            return []
        info = self.feature_info()
        return [name for name in info.column_name[info.sql_type == "bytea"] if name in texts]

    def _drop(self, table: str) -> None:
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError, ClientError):  # (the block's own error matters)
            self.selection.calls.connection().execute(text(f"DROP TABLE IF EXISTS {table}"))
