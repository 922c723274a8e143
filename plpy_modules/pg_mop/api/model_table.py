"""Model tables as evaluate and predict read them."""

from mop_udf import architecture, params
from pg_mop import settings
from pg_mop.database import MopError, quote_identifier


class StoredModel:
    """One model of a model table: architecture (text and checked dict), weights, and what its summary says."""

    def __init__(self, db, text, mst_key):
        """Read model `mst_key` of the table that the caller calls `text`. Raises MopError."""
        table = db.input_table(text, "model table")
        columns = db.columns(table)
        for column in ("model_weights", "model_arch"):
            if column not in columns:
                raise MopError(f'model table "{text}" has no column "{column}"')
        summary = db.input_table(db.suffixed(text, "_summary"), "summary of the model table")
        self.multiple = "mst_key" in columns
        if not self.multiple:
            raise MopError(f'model table "{text}" was not made by madlib_keras_fit_multiple_model',
                           detail="Tables of single models (those without a column mst_key) come with the next release "
                                  "of pg_mop." + (" They take no mst_key." if mst_key is not None else ""),
                           sqlstate="0A000")
        if mst_key is None:
            raise MopError(f'model table "{text}" holds several models: mst_key must be given',
                           hint=f"SELECT mst_key FROM {table};")
        info = db.input_table(db.suffixed(text, "_info"), "info table of the model table")
        row = db.one(f"SELECT i.*, m.model_weights, m.model_arch::text AS arch_text FROM {info} i "
                     f"LEFT JOIN {table} m USING (mst_key) WHERE mst_key = $1", ["integer"], [mst_key])
        if row is None:
            raise MopError(f'mst_key {mst_key} is not in the info table of "{text}"',
                           hint=f"SELECT mst_key FROM {info};")
        if row["model_weights"] is None or row["arch_text"] is None:
            raise MopError(f'model {mst_key} of "{text}" has no weights', detail=row.get("error"))
        self.weights, self.architecture_text = row["model_weights"], row["arch_text"]
        self.compile_params = row["compile_params"]
        self.summary_table, self.summary = summary, db.one(f"SELECT * FROM {summary}")
        missing = [c for c in ("dependent_varname", "independent_varname", "dependent_vartype", "model_arch_table",
                               "normalizing_const") if c not in self.summary]
        if missing:
            raise MopError(f'the summary of model table "{text}" has no column "{missing[0]}"')
        try:
            self.architecture = architecture.check(self.architecture_text)
            self.compile = params.parse_compile_params(self.compile_params)
            self.input_shapes = architecture.input_shapes(self.architecture)
            self.outputs = architecture.output_units(self.architecture, len(self.summary["dependent_varname"]))
        except (architecture.ArchitectureError, params.ParameterError) as error:
            raise MopError(f'model {mst_key} of "{text}" cannot be used: {error}') from None

    @property
    def regression(self):
        """True where the model was trained on numbers, not classes."""
        return self.summary.get("dependent_dtype") == "float32"

    def class_values(self, db):
        """For each output the class values as text (None = SQL NULL), or None where it was not one-hot encoded."""
        found = []
        for name in self.summary["dependent_varname"]:
            column = name + "_class_values"
            values = None
            if column in self.summary:
                values = db.value(f"SELECT {quote_identifier(column)}::text[] FROM {self.summary_table}")
            found.append(None if values is None or values == [None] else values)
        return found


def trainer_options(db, use_gpus):
    """Options of the trainer that works for the calling session itself. Raises MopError: no GPU, bad settings."""
    options = settings.load(db)
    gpus = settings.gpus() if use_gpus else 0
    if use_gpus and not gpus:
        raise MopError("use_gpus is set, but this server has no GPU", hint="Call with use_gpus => FALSE.")
    return {"threads": options["threads"] or settings.cores(), "keras_backend": options["keras_backend"],
            "cache_mb": options["cache_mb"], "gpu": 0 if gpus else None,
            "idle_ms": options["session_idle_timeout"]}
