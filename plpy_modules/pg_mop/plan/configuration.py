"""A configuration: one row of the model-selection table, with what the call has read from it."""

from __future__ import annotations

from typing import Any, TypedDict

from mop_udf.params.parameter_resolver import Resolver


class _Row(TypedDict):
    mst_key: int
    model_id: int
    compile_params: str
    fit_params: str | None
    model_arch: str


class Configuration(_Row, total=False):
    """One configuration of a call, with what the call adds to it.

    `weights_sql`, `weights_md5`: where training does not start from the seed. `compile`, `fit`, `architecture`: parsed;
    `resolver`: of parameters that change by iteration; `functions`: digests of custom functions; `rule`: its stop rule;
    `kept_by`: what its best state is judged by. `problem`: why it cannot be trained; `error`, `blame`, `reason`: why an
    earlier run has failed or ended it. `fold`, `fold_of`, `held_out`: of a trial of cross-validation. `member`: of a model
    space.
    """

    weights_sql: str | None
    weights_md5: str | None
    compile: dict[str, Any]
    fit: dict[str, Any]
    architecture: dict[str, Any]
    resolver: Resolver
    functions: list[list[str]]
    rule: Any
    kept_by: str | None
    problem: str | None
    error: str | None
    blame: str | None
    reason: str | None
    fold: int | None
    fold_of: int
    held_out: list[int]
    member: Any
