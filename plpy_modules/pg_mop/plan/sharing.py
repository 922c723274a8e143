"""Which stages share a compiled model."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, MutableMapping
from typing import Any

from mop_udf.params import params
from pg_mop.plan.cost_history import Net, digest
from pg_mop.plan.stages import Stage

ModelKey = tuple[int, int]  # (number of a compiled model, batch size)


class Sharing:
    """Groups stages by compiled model: stages with an equal `key` share one.

    `architectures`: {mst_key: architecture JSON}. A stage has the architecture of the configuration that asked for it
    first. `shape`: of a row, as text; `framework`: the value of pg_mop.keras_backend.
    """

    def __init__(self, architectures: MutableMapping[int, str], shape: str = "", framework: str = "tensorflow") -> None:
        self.architectures, self.shape, self.framework = architectures, shape, framework
        self._numbers: dict[str, int] = {}
        self._digests: list[str] = []
        self._architecture_digests: dict[str, str] = {}  # every unit asks, so each text is hashed once
        self._number = functools.lru_cache(100_000)(self._parsed)
        self._net = functools.lru_cache(100_000)(self._described)

    def key(self, stage: Stage) -> ModelKey:
        """The number of the stage's compiled model, and its batch size: code is compiled for the pair."""
        architecture = self.architectures[stage.mst_key]
        if architecture not in self._architecture_digests:
            self._architecture_digests[architecture] = digest(architecture)
        return self._number(self._architecture_digests[architecture], *stage.parameters)

    def _parsed(self, architecture: str, compile_params: str, fit_params: str) -> ModelKey:
        compiled, fit = _parameters(compile_params, fit_params)
        text = json.dumps([architecture, self.shape, self.framework, compiled], sort_keys=True)
        return self.number(digest(text)), fit["batch_size"]

    def number(self, digest: str) -> int:
        """The number of a compiled model in this call. Its `digest` is the same in every call."""
        if digest not in self._numbers:
            self._numbers[digest] = len(self._digests)
            self._digests.append(digest)
        return self._numbers[digest]

    def digest(self, number: int) -> str:
        """The digest of the compiled model with this number."""
        return self._digests[number]

    def net(self, stage: Stage) -> Net:
        """The :class:`~pg_mop.plan.cost_history.Net` of a stage."""
        return self._net(self.architectures[stage.mst_key], *stage.parameters)

    def _described(self, architecture: str, compile_params: str, fit_params: str) -> Net:
        return Net.of(architecture, *_parameters(compile_params, fit_params), self.shape, self.framework)


@functools.lru_cache(20_000)  # the same for all plans of a session: EXPLAIN makes several
def _parameters(compile_params: str, fit_params: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The parsed parameters of a stage: to compile, without scalars; and to fit."""
    return params.without_scalars(params.parse_compile_params(compile_params)), params.parse_fit_params(fit_params)


@functools.lru_cache(10_000)
def epochs(fit_params: str) -> int:
    """Passes over the rows in one training unit."""
    fit: Mapping[str, Any] = params.parse_fit_params(fit_params)
    return fit["epochs"] - fit["initial_epoch"]
