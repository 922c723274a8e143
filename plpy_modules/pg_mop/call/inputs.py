"""What a call works on: the packed tables, the engine that holds them, the settings, the number of iterations."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_mop import engines
from pg_mop.backend import ray_cluster, settings
from pg_mop.backend.errors import MopError
from pg_mop.call.earlier import Earlier, options_of
from pg_mop.packing.packed_table import PackedTable
from pg_mop.search.goals import goal, parts

MOST_STAGES = 1_000_000  # iterations of all configurations of a run together


@dataclass(frozen=True)
class Inputs:
    """The checked inputs of a call.

    `source` and `validation`: packed tables (for predictions a RawTable); `options`: the settings, as of the `earlier`
    run where one goes on or is replayed; `capacity`: trainers that a Ray cluster can hold, None without one;
    `frequency`: iterations between two evaluations; `began`: when the call began (time.monotonic).
    """

    db: Any
    source: Any
    validation: Any
    engine: Any
    options: dict[str, Any]
    use_gpus: bool
    num_iterations: int
    frequency: int
    metrics_iterations: Sequence[int]
    earlier: Earlier | None = None
    capacity: int | None = None
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of_arguments(cls, db: Any, a: dict[str, Any], earlier: Earlier | None) -> Inputs:
        """Of the arguments of a call that trains a fixed number of iterations. Raises MopError."""
        tables, every = (
            (a["source_table"], a["validation_table"]),
            (a["num_iterations"], a["metrics_compute_frequency"]),
        )
        return cls.read(db, *tables, *every, a["use_gpus"], earlier)

    @classmethod
    def read(
        cls,
        db: Any,
        source_table: Any,
        validation_table: str | None,
        num_iterations: int | None,
        frequency: int | None,
        use_gpus: bool | None,
        earlier: Earlier | None = None,
        copies: bool = True,
    ) -> Inputs:
        """Check everything that does not depend on the configurations. Raises MopError.

        `source_table`: the caller's name of a packed table, or a table object; `copies`: False if the call never uses
        copies of segments.
        """
        began, options = time.monotonic(), settings.load(db)
        if not copies:
            options["replicas"] = 1
        if earlier is not None:
            options = options_of(earlier, options)
        settings.check_kernel(options)
        if not options["trainers"]:
            settings.check_installed(options["keras_backend"])
        if num_iterations is None or num_iterations < 1:
            raise MopError(f"num_iterations must be at least 1, not {num_iterations}")
        if num_iterations > MOST_STAGES:
            raise MopError(f"num_iterations must be at most {MOST_STAGES}, not {num_iterations}")
        if frequency is not None and not 1 <= frequency <= num_iterations:
            raise MopError(
                f"metrics_compute_frequency must be from 1 to num_iterations ({num_iterations}) or NULL, "
                f"not {frequency}"
            )
        every = num_iterations if frequency is None else frequency
        evaluated = [i for i in range(1, num_iterations + 1) if i % every == 0 or i == num_iterations]
        source, validation = source_table, None
        if source_table is None or isinstance(source_table, str):
            source = PackedTable(db, source_table, "source table")
        if validation_table is not None:
            validation = PackedTable(db, validation_table, "validation table")
        engine = engines.find(db, [t for t in (source, validation) if t is not None], options["replicas"] > 1)
        if options["replicas"] > 1:
            db.check_engine("pg_mop.replicas")
        if db.has_segments and options["keras_backend"] != "tensorflow":
            db.check_engine("pg_mop.keras_backend")
        capacity = None
        if options["trainers"]:
            db.check_engine("pg_mop.trainers")
            capacity = ray_cluster.capacity(db, options["trainers"], bool(use_gpus))
        elif use_gpus and not engine.several_servers:
            engine.check_gpus(options["keras_backend"])
        return cls(
            db=db,
            source=source,
            validation=validation,
            engine=engine,
            options=options,
            use_gpus=bool(use_gpus),
            num_iterations=num_iterations,
            frequency=every,
            metrics_iterations=evaluated,
            earlier=earlier,
            capacity=capacity,
            began=began,
        )

    def replace(self, **changes: Any) -> Inputs:
        """The same inputs, with some values changed."""
        return dataclasses.replace(self, **changes)

    def packed(self, dataset: str) -> Any:
        """The packed table of 'training' or 'validation'."""
        return self.source if dataset == "training" else self.validation

    @property
    def tables(self) -> list[Any]:
        """The packed tables of the call, by dataset."""
        return [packed for packed in (self.source, self.validation) if packed is not None]

    def read_metric(self, text: str, direction: str | None = None) -> tuple[str, str, str]:
        """(name, dataset, 'min' or 'max') of a metric as a caller writes it: 'accuracy', 'validation_loss', 'mine max'.

        Raises MopError.
        """
        from mop_udf.params import params

        name, dataset, given = parts(text)
        dataset = dataset or ("validation" if self.validation is not None else "training")
        if dataset == "validation" and self.validation is None:
            raise MopError(
                f"metric {text!r} needs a validation table",
                hint=f"Give validation_table (validation_preprocessor_dl makes it), or take 'training_{name}'.",
            )
        if name != "loss":
            try:
                parsed = params.parse_compile_params(f"loss=mse,optimizer=SGD,metrics={name}")
                name = next(iter(params.reported_metrics(parsed)))
            except (params.ParameterError, StopIteration):
                raise MopError(f"metric {text!r} is not the name of a metric") from None
        direction = direction or given or goal(name)
        if direction not in ("min", "max"):
            raise MopError(
                f'it is not known whether more or less of metric "{name}" is better',
                hint=f"Write '{name} max' or '{name} min'.",
            )
        return name, dataset, direction
