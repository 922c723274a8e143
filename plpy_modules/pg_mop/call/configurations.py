"""The configurations of a call: their parameters, their stop rules, and whether they fit the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mop_udf.architecture import architecture, architecture_dropout, architecture_shapes
from mop_udf.params import parameter_names, parameter_resolver, params
from pg_mop.backend import object_table
from pg_mop.backend.errors import MopError
from pg_mop.call.inputs import MOST_STAGES, Inputs
from pg_mop.plan.configuration import Configuration
from pg_mop.plan.watch import kept_state
from pg_mop.search.space import ParameterSet


class Configurations:
    """The configurations of one call, in order; more may be added while the run goes on.

    A configuration is a dict with mst_key, model_id, compile_params, fit_params, model_arch and, where training does not
    start from the seed, weights_sql and weights_md5. `check` adds compile, fit, architecture, resolver (of parameters
    that change by iteration), functions (digests of custom functions) and, where it has a stop rule, rule.

    `misfits`: {mst_key: message} of those that cannot be trained on this data; they fail while the others run.
    `shapes`: of a row of the data; `outputs`: the outputs that a model must have for it (PackedTable.wanted_outputs).
    """

    def __init__(
        self,
        inputs: Inputs,
        class_weights: Callable[[Any], Any] | None = None,
        averaging: bool = False,
        judged_by: tuple[str, str, str] | None = None,
        required_metric: str | None = None,
        searches: bool = False,
        keep: str = "last",
        make: Callable[[int, ParameterSet], Configuration] | None = None,
        unusable: Callable[[int], str] | None = None,
        folds: int | None = None,
    ) -> None:
        """`class_weights`: turns a class_weight parameter into {class number: weight}; `averaging`: the one
        configuration is trained as replicas; `judged_by`: (metric, dataset, goal) that chooses the best state
        unless a configuration says otherwise; `required_metric`: a configuration that is added must have this metric;
        `searches`: a search procedure asks for their iterations; `keep`: which state is written, 'last' or 'best',
        unless a configuration says so; `make`: builds a configuration that is added;
        `unusable(count)`: begins the error for bad configurations; `folds`: of cross-validation, where the trials of folds
        are among the configurations (plan/folds.py)."""
        self.inputs, self.averaging, self.required_metric = inputs, averaging, required_metric
        self.searches, self._keep, self.folds = searches, keep, folds
        self._architectures: dict[str, dict[str, Any]] = {}
        self._layer_names: dict[str, str] | None = (
            None  # that architectures may have besides Keras', once they are read
        )
        self._class_weights, self._judged_by, self._make = class_weights, judged_by, make
        self._unusable = unusable or _unusable
        self.earlier = inputs.earlier  # the run that the call resumes or replays, once that is known
        self.functions: str | None = None
        self.by_key: dict[int, Configuration] = {}
        self._folds_of: dict[int, list[int]] = {}  # mst_key -> those of its folds
        self.misfits: dict[int, str] = {}
        self.shapes: list[Any] = []
        self.outputs: Any = None
        self._hint: str | None = None  # a better hint than the data alone give

    def __iter__(self) -> Iterator[Configuration]:
        return iter(list(self.by_key.values()))

    def __len__(self) -> int:
        return len(self.by_key)

    @property
    def code(self) -> dict[str, str]:
        """{name: SHA-256 of its pickle} of their custom functions and classes."""
        return {name: digest for c in self for name, digest in c["functions"]}

    @property
    def code_to_log(self) -> dict[str, str]:
        """The code that a run logs: its own, and for a search, whose configurations come later, all of the object table."""
        if not self.searches or self.functions is None:
            return self.code
        return object_table.all_digests(self.inputs.db, self.functions)

    def __getitem__(self, mst_key: int) -> Configuration:
        return self.by_key[mst_key]

    def __contains__(self, mst_key: object) -> bool:
        return mst_key in self.by_key

    def get(self, mst_key: int) -> Configuration | None:
        return self.by_key.get(mst_key)

    @property
    def first(self) -> Configuration:
        return next(iter(self.by_key.values()))

    # --- folds ----------------------------------------------------------------------------------------
    @property
    def own(self) -> list[Configuration]:
        """The configurations of the caller, without the trials of their folds."""
        return [c for c in self if c.get("fold") is None]

    def trials_of(self, mst_key: int) -> list[int]:
        """The mst_keys of a configuration and of its folds; `mst_key`: of any of them."""
        if not self.folds or mst_key not in self:
            return [mst_key]
        own = self.own_key(mst_key)
        return [own, *self._folds_of.get(own, ())]

    def own_key(self, mst_key: int) -> int:
        """The mst_key of the configuration of which a trial is a fold; else its own."""
        c = self.get(mst_key)
        return mst_key if c is None or c.get("fold_of") is None else c["fold_of"]

    def failures(self, failed: Mapping[int, str]) -> dict[int, str]:
        """{mst_key: message} by configuration of the caller: one fails with any of its trials. `failed`: the same by
        trial."""
        found: dict[int, str] = {}
        for key in sorted(failed):
            c = self.get(key)
            if c is None or c.get("fold") is None:
                found[key] = failed[key]
            else:
                found.setdefault(c["fold_of"], f"fold {c['fold']}: {failed[key]}")
        return found

    # --- checks ---------------------------------------------------------------------------------------
    def check(self, configurations: Sequence[Configuration], functions: str | None) -> None:
        """Take these configurations, with the custom functions of the object table `functions` (quoted name).

        Raises MopError if a string or an architecture cannot be read, or if no configuration fits the data.
        """
        self.check_parameters(configurations, functions)
        self.check_data()

    def check_parameters(self, configurations: Sequence[Configuration], functions: str | None) -> None:
        """Take these configurations without a look at the data. Raises MopError if one cannot be read."""
        self.by_key, self._folds_of, self.functions = {}, {}, functions
        self._architectures, self._layer_names = {}, None
        for c in configurations:
            self.put(c)
        earlier, iterations = self.earlier, self.inputs.num_iterations
        if len(configurations) * iterations > MOST_STAGES and not self.searches:
            raise MopError(
                f"{len(configurations)} configurations of {iterations} iterations are more than "
                f"{MOST_STAGES} iterations in all",
                hint="Ask for fewer now; a later call with more goes on from there (pg_mop.seed must be the same).",
            )
        before = earlier.failed if earlier is not None else {}  # a configuration that was added may be a bad one
        problems = [
            (c["mst_key"], problem)
            for c in configurations
            if (problem := self.problem(c)) and c["mst_key"] not in before and c.get("fold") is None
        ]
        if problems:
            raise MopError(
                self._unusable(len(problems)) + f": {problems[0][1]}",
                detail="\n".join(f"mst_key {key}: {problem}" for key, problem in problems[:20]),
            )

    def put(self, c: Configuration) -> None:
        """Add a configuration without any check."""
        c.setdefault("functions", [])
        if c.get("fold") is not None and c["mst_key"] not in self.by_key:
            self._folds_of.setdefault(c["fold_of"], []).append(c["mst_key"])
        self.by_key[c["mst_key"]] = c

    def problem(self, c: Configuration, iterations: int | None = None) -> str | None:
        """Why a configuration cannot be trained on any data, or None. Adds the parsed strings to it.

        `iterations`: if not those of the run.
        """
        if c.get("problem"):
            return c["problem"]
        db = self.inputs.db
        try:
            c["resolver"] = parameter_resolver.Resolver(c["compile_params"], c["fit_params"], self._class_weights)
            c["compile"], c["fit"] = c["resolver"].compile, c["resolver"].fit
            c["architecture"] = self._architecture(c["model_arch"], is_super_net(c))
            c["fit"]["keep"] = kept_state(c["fit_params"], self._keep)
            c["resolver"].check(iterations or self.inputs.num_iterations)
            architecture_dropout.check_dropout(c["architecture"], c["fit"]["dropout"])
        except (params.ParameterError, architecture.ArchitectureError) as error:
            return str(error)
        if problem := object_table.missing_names(db, self.functions, c["compile"]):
            return problem
        layers = architecture.custom_classes(c["architecture"]) if self._layer_names else []
        c["functions"] = object_table.digests(db, self.functions, c["compile"], layers)
        if c["fit"]["callbacks"] and not db.is_superuser():
            return "only a superuser may use callbacks: they write files on the server"
        return self._read_rule(c)

    def _architecture(self, text: str, super_net: bool = False) -> dict[str, Any]:
        """An architecture (JSON), read once for all configurations that have it. `super_net`: see architecture.check."""
        if super_net:
            return architecture.check(text, True)
        if self._layer_names is None:
            table = self.functions
            self._layer_names = {} if table is None else object_table.layer_names(self.inputs.db, table)
        if text not in self._architectures:
            self._architectures[text] = architecture.check(text, custom=self._layer_names)
        return self._architectures[text]

    def read_architecture(self, c: Configuration) -> dict[str, Any] | None:
        """The checked architecture of a configuration, which is added to it; None where it cannot be read."""
        try:
            c["architecture"] = self._architecture(c["model_arch"], is_super_net(c))
        except architecture.ArchitectureError:
            return None
        return c["architecture"]

    def judged_by(self) -> tuple[str, str, str]:
        """(metric, dataset, goal) that chooses the best state. Raises MopError."""
        return self._judged_by or self.inputs.read_metric("loss")

    def _read_rule(self, c: Configuration) -> str | None:
        """Note the metric that stops the configuration or chooses its best state in `c["rule"]`: (name, dataset, 'min' or
        'max'), and as text in `c["kept_by"]` if it chooses the best state. Returns why the rule cannot be used, or None."""
        stop = c["fit"]["stop"]
        if stop is None and c["fit"]["keep"] == "last":
            return None
        if self.averaging:
            return "stop and keep are for models that hop, not for averaged ones (pg_mop.fit_strategy = sequential)"
        if self.folds:
            return "stop and keep='best' choose by the metrics that the folds measure: with folds they are not allowed"
        try:
            rule = self.inputs.read_metric(stop["metric"], stop["mode"]) if stop else self.judged_by()
        except MopError as error:
            return f"{error.message} ({error.hint})" if error.hint else error.message
        if rule[0] != "loss" and rule[0] not in params.reported_metrics(c["compile"]):
            if stop is None and self.required_metric is not None:
                return None  # the search refuses the configuration
            return f"it stops by the metric {rule[0]!r}, which is not among its metrics"
        c["rule"] = rule
        if c["fit"]["keep"] == "best":
            name, dataset, goal = rule
            c["kept_by"] = f"{dataset} {name} {goal}"
        return None

    def check_data(self) -> None:
        """Read the columns' shapes, and find the configurations that do not fit them. Raises MopError."""
        source, validation, engine = self.inputs.source, self.inputs.validation, self.inputs.engine
        shapes = engine.shapes(source)
        self.shapes = [shapes[c] for c in source.columns]
        self.outputs = source.wanted_outputs(shapes)
        if validation is not None:
            found = engine.shapes(validation)
            trained = self.shapes[: len(source.inputs) + len(source.outputs)]  # (sample weights are single numbers)
            held = [found[c] for c in (*validation.inputs, *validation.outputs)]
            if held != trained:
                raise MopError(
                    f'"{validation.text}" holds rows of shapes {held}, "{source.text}" of {trained}: they must be equal',
                    hint="Make it with validation_preprocessor_dl from the same training table.",
                )
            if difference := validation.differs(source):
                raise MopError(
                    f'validation table "{validation.text}" was packed otherwise than "{source.text}": '
                    f"it has {difference}",
                    hint="Make it with validation_preprocessor_dl from the same training table.",
                )
        before = self.earlier.failed if self.earlier is not None else {}
        self.misfits = {}
        for c in self:
            if c["mst_key"] in before:
                self.misfits[c["mst_key"]] = before[c["mst_key"]]
            elif problem := self.misfit(c):
                self.misfits[c["mst_key"]] = problem
        if self.by_key and len(self.misfits.keys() - before.keys()) == len(self.by_key):
            raise MopError(
                f'no configuration fits the data of "{source.text}": {next(iter(self.misfits.values()))}',
                detail="\n".join(f"mst_key {k}: {m}" for k, m in list(self.failures(self.misfits).items())[:20]),
                hint=self._hint or source.hint_to_fit(),
            )

    def misfit(self, c: Configuration) -> str | None:
        """Why an architecture does not fit the data, or None. The trainer finds the problems that its JSON does not show."""
        source = self.inputs.source
        wanted, widths = self.shapes[: len(source.inputs)], self.outputs["widths"]
        try:
            inputs = architecture_shapes.input_shapes(c["architecture"])
            outputs = architecture_shapes.output_widths(c["architecture"], len(widths))
            for key, columns in (("input_layers", source.inputs), ("output_layers", source.outputs)):
                if misfit := architecture_shapes.name_misfit(c["architecture"], key, columns):
                    self._hint = misfit[1]
                    return f"{misfit[0]} ({misfit[1]})"
        except architecture.ArchitectureError as error:
            return str(error)
        if c["fit"]["class_weight"] and len(widths) > 1:
            return "class_weight needs a model with a single output"
        if self.outputs.get("steps") and source.weighted:
            return f'"{source.text}" has sample weights, which are not supported for targets of several steps'
        if problem := self._loss_misfit(c):
            return problem
        if c["compile"]["weighted_metrics"] and not source.weighted:
            return f'weighted_metrics need sample weights, but "{source.text}" has no column of them'
        if c["compile"]["sample_weight_mode"]:
            return (
                f"sample_weight_mode={c['compile']['sample_weight_mode']!r} needs a weight for every time step, "
                "but a packed table has at most one sample weight a row"
            )
        if inputs != wanted:
            return (
                f"the architecture takes input of shape {_one(inputs)}, "
                f'"{source.text}" has {_one(wanted)}: input shape does not match'
            )
        losses = self._losses(c)
        if problem := architecture_shapes.output_misfit(_known(outputs, losses, source), self.outputs):
            return problem
        if outputs == [1] and widths == [2] and parameter_names.needs_all_classes(losses[0]):
            return (
                f"{losses[0]} needs a unit for each of two classes, but the architecture has one output unit: "
                "take loss='binary_crossentropy', or two units with activation='softmax'"
            )
        return None

    def _losses(self, c: Configuration) -> list[str]:
        """The loss of each output, in the order of the outputs, of a configuration whose loss has the outputs' names."""
        loss = c["compile"]["loss"]
        if isinstance(loss, dict):
            # (without names in the JSON, the trainer compares them)
            return [loss[name] for name in architecture_shapes.output_names(c["architecture"]) or loss]
        return [loss] * len(self.inputs.source.transform.outputs) if isinstance(loss, str) else loss

    def _loss_misfit(self, c: Configuration) -> str | None:
        """Why the losses and metrics of a configuration do not fit the outputs, or None."""
        loss, columns = c["compile"]["loss"], self.inputs.source.transform.outputs
        if isinstance(loss, dict):
            names = architecture_shapes.output_names(c["architecture"])
            if names is not None and set(names) != set(loss):
                return f"loss names the outputs {', '.join(loss)}, the architecture's are {', '.join(names)}"
        losses = self._losses(c)
        if len(losses) != len(columns):
            return f"there are losses for {len(losses)} outputs, but the data have {len(columns)}"
        for text, column in zip(losses, columns):
            of_numbers = [text, *params.reported_metrics(c["compile"]).values()] if column.is_numbers else []
            for name in (text.partition("(")[0] for text in of_numbers):
                if name in parameter_names.SPARSE_LOSSES | parameter_names.SPARSE_METRICS:
                    return f'{name} needs classes, but column "{column.name}" has numbers'
        return None

    # --- while the run goes on ------------------------------------------------------------------------
    def make(self, mst_key: int, added: ParameterSet) -> Configuration:
        """A configuration that is added during the run. Raises MopError if the tables that it needs have changed."""
        if self.folds and not self.searches:
            raise MopError("this run has folds and takes no other configuration", sqlstate="0A000")
        if self._make is None:
            raise MopError("this run trains one model and takes no other configuration", sqlstate="0A000")
        return self._make(mst_key, added)

    def add(self, c: Configuration, iterations: int) -> str | None:
        """Take a configuration that is added. Returns why it cannot be trained, or None; then it is a misfit."""
        problem = self.problem(c, iterations) or self.misfit(c)
        self.put(c)
        if problem is None and self.required_metric not in (None, "loss", *params.reported_metrics(c["compile"])):
            problem = f"it has no metric {self.required_metric!r}, by which this search judges"
        if problem:
            self.misfits[c["mst_key"]] = c["error"] = problem
        return problem

    def take_up(self, configurations: Sequence[Configuration]) -> None:
        """Take the configurations that people had added to an earlier run, too."""
        for c in configurations if not self.averaging else ():
            if c["mst_key"] not in self.by_key:
                c = {**c, "error": None}
                if problem := self.problem(c) or self.misfit(c):
                    self.misfits[c["mst_key"]] = problem
                self.put(c)


def is_super_net(c: Mapping[str, Any]) -> bool:
    """True for a configuration, or its outcome, that is a super-net of a one-shot search: no model of its own."""
    return bool((c.get("member") or {}).get("super_net"))


def _unusable(count: int) -> str:
    return f"{count} configuration{'s' if count > 1 else ''} cannot be trained"


def _one(values: Sequence[Any]) -> Any:
    """The only element of a list, or the list itself."""
    return values[0] if len(values) == 1 else values


def _known(widths: Sequence[int | None], losses: Sequence[str], source: Any) -> list[int | None]:
    """The widths of outputs, without those of a loss of class numbers on vectors: these may be one-hot, or the class numbers
    of several steps, and the trainer knows the outputs' dimensions."""
    return [
        None if parameter_names.takes_class_numbers(loss) and column.classes is None else width
        for width, loss, column in zip(widths, losses, source.transform.outputs, strict=True)
    ]
