"""The parameter strings of a configuration in each iteration.

Standard library only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mop_udf.params import sequences
from mop_udf.params.parameter_text import ParameterError, Verbatim, write_literal
from mop_udf.params.params import (
    DEFAULTS,
    SEQUENCE_KEYS,
    SIGN_CHANGED,
    WITHOUT_EFFECT,
    fit_value,
    parse_compile_params,
    parse_fit_params,
    sign,
)
from mop_udf.params.sequences import Sequence

Values = list[tuple[str, Any]]  # (parameter, value) of each sequence in one iteration


class Resolver:
    """The parameter strings of one configuration in each iteration, with values in place of its sequences.

    The strings are canonical: equal for equal meanings in that iteration, and readable by the same parsers. Sequences
    per mini-batch stay in them as text. Parameters without effect are left out.
    """

    def __init__(
        self, compile_params: str | None, fit_params: str | None, classes: Callable[[Any], Any] | None = None
    ) -> None:
        """Parse both strings; raises ParameterError.

        `classes(weights)` turns class weights, possibly with labels or 'balanced', into {class number: weight}; without
        it they have class numbers already.
        """
        self.compile, self.fit = parse_compile_params(compile_params), parse_fit_params(fit_params)
        self._classes, weights = classes or (lambda weights: weights), self.fit["class_weight"]
        if weights is not None and not isinstance(weights, Sequence):
            self.fit["class_weight"] = self._classes(weights)
        self._scalars = [
            (k, v)
            for k, v in sorted(self.compile["optimizer_args"].items())
            if isinstance(v, Sequence) and v.per == "iteration"
        ]
        self._fits = [(k, self.fit[k]) for k in SEQUENCE_KEYS if isinstance(self.fit[k], Sequence)]
        # the values and the strings of the last iteration requested
        self._last: tuple[Values, Values] | None = None
        self._texts: tuple[str, str] | None = None
        if not self.varies:
            self._texts = (_compile_text(self.compile), _fit_text(self.fit))

    @property
    def varies(self) -> bool:
        """True where iterations differ in their parameters."""
        return bool(self._scalars or self._fits)

    def at(self, iteration: int) -> tuple[str, str]:
        """(compile_params, fit_params) of an iteration, from 1; raises ParameterError where a value is invalid."""
        if self._texts is not None and not self.varies:
            return self._texts
        scalars, fits = self._values(iteration)
        if self._texts is None or (scalars, fits) != self._last:
            texts, before = self._texts or ("", ""), self._last or (None, None)
            self._texts = (
                texts[0] if scalars == before[0] else self._compile(scalars),
                texts[1] if fits == before[1] else _fit_text({**self.fit, **dict(fits)}),
            )
            self._last = scalars, fits
        return self._texts

    def check(self, iterations: int) -> None:
        """Raise ParameterError where a value in the first `iterations` iterations is invalid."""
        for iteration in range(1, iterations + 1) if self.varies else ():
            self._values(iteration)

    def _values(self, iteration: int) -> tuple[Values, Values]:
        step, key = iteration - 1, None
        try:
            for key, sequence in self._scalars:  # noqa: B007
                value = sequence.at(step)
                if key != "learning_rate" and sign(value) != sign(sequence.at(0)):
                    raise ParameterError(SIGN_CHANGED.format(key, value))
            scalars = [(k, s.at(step)) for k, s in self._scalars]
            fits = []
            for key, sequence in self._fits:
                value = fit_value(key, sequence.at(step))
                fits.append((key, self._classes(value) if key == "class_weight" else value))
            return scalars, fits
        except (sequences.SequenceError, ParameterError) as error:
            raise ParameterError(f"{key}, iteration {iteration}: {error}") from None

    @functools.cached_property
    def _pieces(self) -> list[str]:
        """The compile string, cut at the values of the sequences."""
        mark = "\0"
        return _compile_text(
            {
                **self.compile,
                "optimizer_args": {**self.compile["optimizer_args"], **{k: Verbatim(mark) for k, _ in self._scalars}},
            }
        ).split(mark)

    def _compile(self, scalars: Values) -> str:
        parts = [self._pieces[0]]
        for (_, value), piece in zip(scalars, self._pieces[1:]):
            parts += [repr(value + 0.0), piece]
        return "".join(parts)


def resolve(compile_params: str, fit_params: str | None, iteration: int) -> tuple[str, str]:
    """(compile_params, fit_params) of an iteration, from 1, without sequences per iteration: see Resolver."""
    return _resolver(compile_params, fit_params).at(iteration)


@functools.lru_cache(1000)
def _resolver(compile_params: str, fit_params: str | None) -> Resolver:
    return Resolver(compile_params, fit_params)


def _compile_text(parsed: dict[str, Any]) -> str:
    """The canonical string of parsed compile parameters."""
    optimizer = ",".join(f"{k}={write_literal(v)}" for k, v in sorted(parsed["optimizer_args"].items()))
    parts = [f"loss={_loss_literal(parsed['loss'])}", f"optimizer='{parsed['optimizer']}({optimizer})'"]
    weights = parsed["loss_weights"]
    if weights:
        weights = {k: float(v) for k, v in weights.items()} if isinstance(weights, dict) else list(map(float, weights))
    others = {
        "metrics": parsed["metrics"] or None,
        "loss_weights": weights,
        "weighted_metrics": parsed["weighted_metrics"],
        "sample_weight_mode": parsed["sample_weight_mode"],
    }
    return ",".join(parts + [f"{k}={write_literal(v)}" for k, v in others.items() if v is not None])


def _loss_literal(loss: Any) -> str:
    # (a single loss is read without escapes)
    return repr(loss) if isinstance(loss, str) else write_literal(loss)


def _fit_text(parsed: dict[str, Any]) -> str:
    """The canonical string of parsed fit parameters, without defaults and parameters without effect."""
    parts = []
    for key, value in sorted(parsed.items()):
        if key == "callbacks" and value:
            parts.append(
                f"callbacks=[TensorBoard({','.join(f'{k}={write_literal(v)}' for k, v in sorted(value.items()))})]"
            )
        elif key not in WITHOUT_EFFECT and (value != DEFAULTS[key] or type(value) is not type(DEFAULTS[key])):
            parts.append(f"{key}={write_literal(value)}")
    return ",".join(parts)
