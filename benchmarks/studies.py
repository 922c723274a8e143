"""Studies: searches of spaces of sequences with common beginnings; together they are the workload `search`.

They follow TreeML (table 6.2 of the thesis): sequences of learning rates and of batch sizes. If all are trained to the
end, their merge rate is about 2 or 3. The procedures are grid search, successive halving and ASHA with reduction 4.
"""

import dataclasses

from workloads import Configuration, Workload, dense

from mop_udf.params import sequence_parser, sequences
from pg_mop.search.random_sampler import RandomSampler
from pg_mop.search.space import Space

SEED = 1  # of the order of the configurations


@dataclasses.dataclass(frozen=True)
class Study(Workload):
    """The space is every combination of `rates` and `batch_sizes`, texts of numbers and sequences, for SGD.

    `procedure`: grid (all trained to the end), successive-halving or asha, with `reduction` and the rungs `levels`; the
    last rung is `iterations`. All contenders try the `configurations` in their order.
    """

    rates: tuple = ()
    batch_sizes: tuple = ()
    procedure: str = "grid"
    reduction: int = 4
    levels: tuple = ()
    peers: bool = True  # the study also runs in other tools

    @property
    def parts(self):
        """The studies, in the order of their execution."""
        return (self,)

    @property
    def space(self):
        """The space in mop_search's syntax."""
        compiled, fitted = _grids(self.rates, self.batch_sizes)
        return compiled[:-1] + ", " + fitted[1:]

    def values(self, key):
        """[(learning rate, batch size) of each iteration] of configuration `key`."""
        c = self.configurations[key]
        rate, size = (
            sequence_parser.parse(text) if sequence_parser.is_sequence_text(text) else sequences.constant(float(text))
            for text in (c.learning_rate, c.batch_size)
        )
        rate, size = (s if isinstance(s, sequences.Sequence) else sequences.constant(s) for s in (rate, size))
        return [(rate.at(step), round(size.at(step))) for step in range(self.iterations)]


@dataclasses.dataclass(frozen=True)
class Series(Workload):
    """Studies of the same rows and the same net, one after the other, in one session."""

    parts: tuple = ()

    @classmethod
    def of(cls, about, studies):
        """`studies` differ only in their spaces."""
        given = {field.name: getattr(studies[0], field.name) for field in dataclasses.fields(Workload)}
        return cls(
            **{**given, "about": f"{len(studies)} studies, one after the other ({about}), each of {studies[0].about}"},
            parts=tuple(studies),
        )


def _grids(rates, batch_sizes):
    """The texts of the space: compile parameters, fit parameters."""
    return (
        f"{{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': "
        f"[{{'optimizer': ['SGD'], 'lr': [{', '.join(rates)}], 'momentum': [0.9]}}]}}",
        f"{{'batch_size': [{', '.join(batch_sizes)}]}}",
    )


def study(
    about, iterations, rates, batch_sizes, procedure="grid", levels=(), peers=True, rows=20_000, validation=1_000
):
    """A Study of all configurations of its space, in the order of mop_search's random sampler."""
    sampler, drawn = RandomSampler(Space.of_texts([1], *_grids(rates, batch_sizes)), SEED), []
    while point := sampler.ask(len(drawn) + 1):
        drawn.append(Configuration(0, "SGD", rates[point["0.lr"]], batch_sizes[point["batch_size"]]))
    return Study(
        f"{len(drawn)} configurations, {iterations} iterations of {rows:,} x 64, a net 64-64-64-10; {about}",
        rows,
        (64,),
        iterations,
        (dense(64, 64),),
        tuple(drawn),
        validation=validation,
        rates=rates,
        batch_sizes=batch_sizes,
        procedure=procedure,
        levels=levels or (iterations,),
        peers=peers,
    )


def _halving(procedure, about):
    rates = (
        *(
            f"MultiStep({start}, {steps})"
            for start in (0.2, 0.1, 0.05, 0.02)
            for steps in ("[10], 0.1", "[12], 0.1", "[10, 13], 0.3")
        ),
        "Warmup(0.01, 3, MultiStep(0.1, [7], 0.1))",
        "Warmup(0.01, 3, MultiStep(0.1, [9], 0.1))",
        "Warmup(0.005, 3, Cosine(0.1, 13))",
        "CyclicLR(0.002, 0.1, 8)",
    )
    return study(
        about,
        16,
        rates,
        ("32", "MultiStep(32, [10], 2)", "MultiStep(32, [12], 4)", "64"),
        procedure,
        (1, 4, 16),
        rows=5_000,
    )


def _eighth(number):
    first, second = 6 + number % 3, 9 + number // 3
    return study(
        "grid search",
        12,
        (
            f"MultiStep(0.1, [{first}], 0.1)",
            f"MultiStep(0.1, [{second}], 0.1)",
            f"MultiStep(0.1, [{first}, {second}], 0.3)",
            f"MultiStep(0.05, [{first}], 0.1)",
            f"Warmup(0.01, 3, MultiStep(0.1, [{second - 3}], 0.1))",
            f"Cosine({(10 - number) / 100}, 12)",
            f"Exponential(0.1, {(80 + number) / 100})",
        ),
        ("32", f"MultiStep(32, [{second}], 2)"),
        peers=False,
    )


STUDIES = {
    "grid-2": study(
        "grid search, merge rate about 2",
        12,
        (
            "MultiStep(0.1, [6, 9], 0.1)",
            "MultiStep(0.1, [8], 0.3)",
            "MultiStep(0.03, [6], 0.1)",
            "MultiStep(0.03, [9], 0.1)",
            "Cosine(0.1, 12)",
            "Warmup(0.01, 3, MultiStep(0.1, [6], 0.1))",
            "Warmup(0.01, 3, Exponential(0.1, 0.8))",
            "CyclicLR(0.01, 0.1, 3)",
        ),
        ("32", "MultiStep(32, [8], 2)", "MultiStep(32, [10], 2)", "64"),
        peers=False,
    ),
    "grid-3": study(
        "grid search, merge rate about 3",
        12,
        (
            "MultiStep(0.1, [8], 0.1)",
            "MultiStep(0.1, [10], 0.1)",
            "MultiStep(0.1, [8, 10], 0.3)",
            "[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.03]",
            "Warmup(0.01, 3, MultiStep(0.1, [5], 0.1))",
            "Warmup(0.01, 3, MultiStep(0.1, [7], 0.1))",
            "Warmup(0.01, 3, MultiStep(0.1, [6], 0.3))",
            "Warmup(0.01, 3, MultiStep(0.1, [5, 7], 0.3))",
        ),
        ("32", "MultiStep(32, [9], 2)", "MultiStep(32, [10], 4)", "64"),
        peers=False,
    ),
    "eight": Series.of("grid searches; each begins as others do", [_eighth(number) for number in range(8)]),
    "halving": _halving("successive-halving", "successive halving after 1, 4 and 16 iterations"),
    "asha": _halving("asha", "ASHA, rungs after 1, 4 and 16 iterations"),
}
