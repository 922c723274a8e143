"""What a training call asks for must be trainable: its configurations, their rules, and the data that they are for."""

import functools

from mop_udf import architecture, params
from pg_mop.api.class_weights import ClassWeights
from pg_mop.backend import object_table
from pg_mop.backend.database import MopError
from pg_mop.search.goals import goal, parts

MOST_STAGES = 1_000_000  # of a run, where all are asked for at its beginning


class Checks:
    """The part of a training call that checks its configurations.

    `configurations` are dicts with mst_key, model_id, compile_params, fit_params, model_arch and, where training does
    not start from the seed, weights_sql and weights_md5; `check` adds compile, fit, architecture, resolver (of its
    sequences) and, where it has any, rule. `averaging`: the one configuration is trained as replicas, one for each
    segment (see schedule/replicas.py).
    """

    averaging = False
    hint_to_fit = None  # where it is known better than by the data alone
    asks_for_all = True  # before anything is trained

    def check(self, configurations, functions):
        """Check the configurations (see the class) with the custom functions of the object table `functions` (quoted).

        Those that do not fit the data are `misfits`, which fail while the others run. Raises MopError where a string
        or an architecture cannot be read, or where no configuration fits.
        """
        self.configurations, self.by_key, self.functions = [], {}, functions
        for c in configurations:
            self.put(c)
        if self.asks_for_all and len(configurations) * self.num_iterations > MOST_STAGES:
            raise MopError(
                f"{len(configurations)} configurations of {self.num_iterations} iterations are more than "
                f"{MOST_STAGES} iterations in all",
                hint="Ask for fewer now; a later call with more goes on from there (pg_mop.seed must be the same).",
            )
        before = self.earlier.failed if self.earlier is not None else {}  # perhaps somebody added what is none
        problems = [
            (c["mst_key"], problem)
            for c in configurations
            if (problem := self._problem(c)) and c["mst_key"] not in before
        ]
        if problems:
            raise MopError(
                self.unusable(len(problems)) + f": {problems[0][1]}",
                detail="\n".join(f"mst_key {key}: {problem}" for key, problem in problems[:20]),
            )
        self._check_data()

    def put(self, c):
        """One more configuration: in `configurations`, and in `by_key` under its mst_key."""
        c.setdefault("functions", [])
        self.configurations.append(c)
        self.by_key[c["mst_key"]] = c

    def unusable(self, count):
        """Begins the error that says that `count` configurations cannot be trained."""
        return f"{count} configuration{'s' if count > 1 else ''} cannot be trained"

    def _problem(self, c, iterations=None):
        """What forbids a configuration, or None; fills in what its strings say. `iterations`: if not the run's."""
        if c.get("problem"):
            return c["problem"]
        try:
            c["resolver"] = params.Resolver(c["compile_params"], c["fit_params"], self._class_weights)
            c["compile"], c["fit"] = c["resolver"].compile, c["resolver"].fit
            c["architecture"] = architecture.check(c["model_arch"])
            c["resolver"].check(iterations or self.num_iterations)
            architecture.check_dropout(c["architecture"], c["fit"]["dropout"])
        except (params.ParameterError, architecture.ArchitectureError) as error:
            return str(error)
        if problem := object_table.missing_names(self.db, self.functions, c["compile"]):
            return problem
        c["functions"] = object_table.digests(self.db, self.functions, c["compile"])
        if c["fit"]["callbacks"] and not self.db.is_superuser():
            return "only a superuser may use callbacks: they write files on the server"
        return self._read_rule(c)

    @functools.cached_property
    def _class_weights(self):
        return ClassWeights(self.db, self.source, self.engine)

    def _read_rule(self, c):
        """Note in `c["rule"]` by which metric a configuration stops, or which of its states is the best: (name,
        dataset, 'min' or 'max'). What forbids it, or None."""
        stop = c["fit"]["stop"]
        if stop is None and c["fit"]["keep"] == "last":
            return None
        if self.averaging:
            return "stop and keep are for models that hop, not for averaged ones (pg_mop.fit_strategy = sequential)"
        try:
            metric, dataset, direction = self.read_metric(stop["metric"], stop["mode"]) if stop else self.judged_by()
        except MopError as error:
            return f"{error.message} ({error.hint})" if error.hint else error.message
        if metric != "loss" and metric not in c["compile"]["metrics"]:
            return f"it stops by the metric {metric!r}, which is not among its metrics"
        c["rule"] = metric, dataset, direction
        return None

    def judged_by(self):
        """By what the best state is chosen where nothing is said, as `read_metric` gives it."""
        return self.read_metric("loss")

    def read_metric(self, text, direction=None):
        """(name, dataset, 'min' or 'max') of what a caller calls a metric: 'accuracy', 'validation_loss', 'mine max'.
        Raises MopError."""
        name, dataset, given = parts(text)
        dataset = dataset or ("validation" if self.validation is not None else "training")
        if dataset == "validation" and self.validation is None:
            raise MopError(
                f"metric {text!r} needs a validation table",
                hint=f"Give validation_table (validation_preprocessor_dl makes it), or take 'training_{name}'.",
            )
        if name != "loss":
            try:
                name = params.parse_compile_params(f"loss=mse,optimizer=SGD,metrics={name}")["metrics"][0]
            except (params.ParameterError, IndexError):
                raise MopError(f"metric {text!r} is not the name of one") from None
        direction = direction or given or goal(name)
        if direction not in ("min", "max"):
            raise MopError(
                f'whether more or less of metric "{name}" is better is not known',
                hint=f"Write '{name} max' or '{name} min'.",
            )
        return name, dataset, direction

    def _check_data(self):
        """The data's columns, and which configurations they do not fit (those fail, the others run)."""
        source = self.source
        shapes = self.engine.shapes(source)
        self.shapes = [shapes[c] for c in source.columns]
        self.outputs = source.wanted_outputs(shapes)
        if self.validation is not None:
            theirs = self.engine.shapes(self.validation)
            theirs = [theirs[c] for c in self.validation.columns]
            if theirs != self.shapes:
                raise MopError(
                    f'"{self.validation.text}" holds rows of shapes {theirs}, "{source.text}" of '
                    f"{self.shapes}: they must be equal",
                    hint="Make it with validation_preprocessor_dl from the same training table.",
                )
            if difference := self.validation.differs(source.summary):
                raise MopError(
                    f'validation table "{self.validation.text}" was packed otherwise than "{source.text}": '
                    f"it has {difference}",
                    hint="Make it with validation_preprocessor_dl from the same training table.",
                )
        before = self.earlier.failed if self.earlier is not None else {}
        self.misfits = {}
        for c in self.configurations:
            if c["mst_key"] in before:
                self.misfits[c["mst_key"]] = before[c["mst_key"]]
            elif problem := self._misfit(c):
                self.misfits[c["mst_key"]] = problem
        if self.configurations and len(self.misfits.keys() - before.keys()) == len(self.configurations):
            raise MopError(
                f'no configuration fits the data of "{source.text}": {next(iter(self.misfits.values()))}',
                detail="\n".join(f"mst_key {k}: {m}" for k, m in list(self.misfits.items())[:20]),
                hint=self.hint_to_fit or self.source.hint_to_fit(),
            )

    def _misfit(self, c):
        """Why an architecture does not fit the data, or None; the trainer says it of what its JSON does not tell."""
        wanted, widths = self.shapes[: len(self.source.inputs)], self.outputs["widths"]
        try:
            inputs = architecture.input_shapes(c["architecture"])
            outputs = architecture.output_widths(c["architecture"], len(widths))
            for key, columns in (("input_layers", self.source.inputs), ("output_layers", self.source.outputs)):
                if misfit := architecture.name_misfit(c["architecture"], key, columns):
                    self.hint_to_fit = misfit[1]
                    return f"{misfit[0]} ({misfit[1]})"
        except architecture.ArchitectureError as error:
            return str(error)
        if c["fit"]["class_weight"] and len(widths) > 1:
            return "class_weight needs a model with a single output"
        if inputs != wanted:
            return (
                f"the architecture takes input of shape {_one(inputs)}, "
                f'"{self.source.text}" has {_one(wanted)}: input shape does not match'
            )
        return architecture.output_misfit(outputs, self.outputs)


def _one(values):
    """A list as it is, or its only element."""
    return values[0] if len(values) == 1 else values
