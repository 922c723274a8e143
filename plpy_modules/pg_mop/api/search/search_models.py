"""Where the models of a search come from: an architecture table, or a model space."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pg_mop.api.madlib import architectures
from pg_mop.api.search import spaces
from pg_mop.backend import object_table, weights
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.call.earlier import Earlier
from pg_mop.plan.configuration import Configuration
from pg_mop.search.models import ModelChoices
from pg_mop.search.space import ParameterSet
from pg_mop.spaces.model_space import digits


def open_models(db: Database, a: Mapping[str, Any], earlier: Earlier | None = None) -> Models:
    """The models of a call with the arguments `a`: Architectures or Members. `earlier`: a run that goes on. Raises MopError."""
    if a.get("model_space") is None:
        return Architectures(db, a["model_arch_table"], earlier)
    if (a["model_arch_table"] or "").strip():
        raise MopError(
            "model_arch_table and model_space cannot be combined",
            detail="A model space has its base models itself.",
            hint="Write NULL in place of the architecture table.",
        )
    return Members(db, a["model_space"], earlier)


def object_table_of(db: Database, given: str | None, models: Models) -> str | None:
    """The object table of a call that names `given`, or None: that of the model space, which the call may leave out. `models`:
    from open_models. Raises MopError where the call names another one."""
    space_table = models.object_table
    if None not in (given, space_table) and object_table.table_name(db, given) != object_table.table_name(
        db, space_table
    ):
        raise MopError(
            f'object_table is "{given}", but the model space has its custom layers from {space_table}',
            hint="Leave object_table out: the losses and metrics are found in the table of the space, too.",
        )
    return space_table if given is None else given


class Architectures:
    """The architecture table of a search, whose models are the choices for model_id."""

    models = None
    object_table = None  # an architecture table names none

    def __init__(self, db: Database, text: str | None, earlier: Earlier | None = None) -> None:
        """`earlier`: a run that goes on, which had some of the architectures: they must be the same. Raises MopError."""
        self.text, self.table = text, architectures.open_table(db, text)
        self.rows = {
            row["model_id"]: row
            for row in db.execute(
                f"SELECT model_id::integer AS model_id, model_arch::text AS model_arch, "
                f"{weights.digest_sql('model_weights')} FROM {self.table} ORDER BY 1"
            )
        }
        for key, row in self.rows.items():
            weights.complete(db, self.table, f"model_id = {key}", row, f'model_id {key} of "{text}"')
        if earlier is not None:
            before = earlier.tables["architectures"]
            self.rows = {key: row for key, row in self.rows.items() if str(key) in before}
            if self.digests() != before:
                raise MopError(
                    f'the architectures in "{text}" are not those that run {earlier.run_id} began with',
                    detail="Or their weights are others.",
                    sqlstate="55000",
                    hint=f"Begin another search with continue_from => {earlier.run_id}.",
                )
        if not self.rows:
            raise MopError(f'model architecture table "{text}" is empty')

    def digests(self) -> dict[str, str]:
        """{model_id as text: digest of its architecture and weights}."""
        return {
            str(key): hashlib.md5(f"{row['model_arch']}/{row['weights_md5']}".encode()).hexdigest()
            for key, row in self.rows.items()
        }

    def check_ids(self, ids: Iterable[Any]) -> None:
        """Raises MopError if a model_id is not in the table."""
        unknown = [i for i in ids if not isinstance(i, int) or isinstance(i, bool) or i not in self.rows]
        if unknown:
            raise MopError(
                f'model_id {unknown[0]!r} is not in "{self.text}"', hint=f"SELECT model_id, name FROM {self.table};"
            )

    def configuration(self, mst_key: int, proposed: ParameterSet) -> Configuration:
        """The configuration of what a search proposes."""
        model_id, compile_params, fit_params = proposed
        row = self.rows.get(model_id)
        c: dict[str, Any] = {
            "mst_key": mst_key,
            "model_id": model_id,
            "compile_params": compile_params,
            "fit_params": fit_params,
            "model_arch": row and row["model_arch"],
            "weights_md5": row and row["weights_md5"],
            **({"weights_sql": row["weights_sql"]} if row and "weights_sql" in row else {}),
        }
        if row is None:
            c.update(problem=f'model_id {model_id} is not in "{self.text}"', model_arch="{}")
        return cast(Configuration, c)

    def remember(self, model_id: Any, member: Any) -> None:
        """Nothing: the model_id names the model."""

    def tell_misfits(self) -> None:
        """Nothing: each model is as the table has it."""


class Members:
    """The members of a model space, whose choices are dimensions of the search."""

    text = None  # there is no architecture table

    def __init__(self, db: Database, text: str, earlier: Earlier | None = None) -> None:
        """`earlier`: a run that goes on: its space must be the same. Raises MopError."""
        self.db, self.name = db, text
        self.models = ModelChoices(spaces.read(db, text))
        self.object_table = self.models.space.custom.table  # of its custom layers, None without any
        if earlier is not None and earlier.tables["architectures"] != self.digests():
            raise MopError(
                f'the model space in "{text}" is not the one that run {earlier.run_id} began with',
                sqlstate="55000",
                hint=f"Begin another search with continue_from => {earlier.run_id}.",
            )

    def digests(self) -> dict[str, str]:
        """The digest of the space, in the place of those of architectures."""
        return {"space": self.models.space.digest}

    def remember(self, model_id: Any, member: Any) -> None:
        """Let results of a member of an earlier search count; `member`: as the catalog has it, or None."""
        if member and isinstance(member.get("choices"), dict):
            self.models.remember(model_id, member.get("base"), member["choices"])

    def configuration(self, mst_key: int, proposed: ParameterSet) -> Configuration:
        """The configuration of what a search proposes."""
        model_id, compile_params, fit_params = proposed
        if model_id is not None and (net := self.models.net(model_id)) is not None:
            return {
                "mst_key": mst_key,
                "model_id": model_id,
                "compile_params": compile_params,
                "fit_params": fit_params,
                "model_arch": net.architecture,
                "weights_md5": None,
                "member": {
                    "super_net": True,
                    "base": net.model_id,
                    "shared_by": {"base": net.model_id, "members": digits(self.models.space.size_of(net.model_id))},
                },
            }
        member = self.models.member(model_id)
        c: dict[str, Any] = {
            "mst_key": mst_key,
            "model_id": model_id if member is None else member[0],
            "compile_params": compile_params,
            "fit_params": fit_params,
            "model_arch": member and member[1].architecture,
            "weights_md5": None,
            "member": member and self.models.describe(member[0]),
        }
        if member is None:
            c.update(
                problem=f'model_id {model_id} is no member of "{self.name}" that this search has proposed',
                model_arch="{}",
            )
        return cast(Configuration, c)

    def tell_misfits(self) -> None:
        """Send a NOTICE if members were drawn that do not fit together."""
        misfits = self.models.misfits
        if self.models.ended:
            self.db.notice(
                f'the grid ended before the last member of "{self.name}", because very many in a row do not fit together',
                hint="Use another procedure: 'random' draws members of the whole space.",
            )
        if misfits:
            self.db.notice(
                f'{sum(misfits.values())} members of "{self.name}" that were drawn do not fit together, and are no trials',
                detail=f"For instance: {max(misfits, key=lambda reason: misfits[reason])}",
            )


Models = Architectures | Members
