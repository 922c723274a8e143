"""Ensembles of the models of a table, and of boosted trees: their answers for validation rows choose, and one version of a
named model has them all.

Each candidate's net answers once, in this process by NumPy where it can, else in the session's trainer; trees have answered
where they were trained (boosting.py). The selection (inference/ensemble.py) needs these answers alone, and so does the
version's decision (inference/calibration.py).
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mop_udf.aggregate import Session
from mop_udf.architecture import architecture
from mop_udf.params import params
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.tables import boosting, dense_inputs, folded, linear, perceptrons, trained
from pg_mop.api.tables.named_models import Version, add_version, check_writable, version_of, with_shapes
from pg_mop.api.tables.trained import Target, Trained
from pg_mop.backend import weights
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import quote_literal
from pg_mop.columns import Column, OneHot, Transform, decision
from pg_mop.columns.decision import Decision
from pg_mop.inference import calibration, ensemble, forward
from pg_mop.inference.metrics import (
    MOST_RANKED,
    OF_DECISIONS,
    OF_RANKS,
    OF_THE_SHARES,
    WITH_THRESHOLD,
    Judge,
    Metric,
    judge_of_classes,
    judge_of_numbers,
)
from pg_mop.inference.named_model import table_of
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable

CANDIDATES = 32  # models of the least validation loss, among which an ensemble chooses
MOST_TRIED = CANDIDATES + boosting.KEPT + linear.KEPT + perceptrons.KEPT
MOST_ROWS, LEAST_ROWS = 20_000, 500  # that choose
MOST_BYTES = 256 << 20  # of these rows, of all candidates' answers, and of the weights of an ensemble
CHUNK_ROWS = 10_000  # that a model answers for at a time
LEAST_SECONDS = 0.5  # of each
SAMPLES, SAMPLED_ROWS = 20, 100_000  # of the validation rows, that select members; rows of all samples, at most
RANKED_COST = 12  # of a selection by a metric of ranks, relative to others
Computer = Callable[[Sequence["np.ndarray"]], "np.ndarray"]  # inputs [rows, ...] -> the output [rows, ...]


@dataclass
class Member:
    """A net, the `model` with the number `key` of the model table, without its weights; or the trial `key` of another `family`:
    its `content` is LightGBM's text, or the weights of the net `architecture` (JSON). `size`: bytes of the weights or of the
    text; `info`: for the version's details; `weight`: its share of the answer."""

    family: str
    key: int
    size: int
    info: dict[str, Any]
    model: StoredModel | None = None
    content: bytes = b""
    architecture: str | None = None
    weight: float = 0.0

    @property
    def net(self) -> tuple[str, dict[str, Any]]:
        """The architecture of a net: as JSON, and checked."""
        if self.model is not None:
            return self.model.architecture_text, self.model.architecture
        assert self.architecture is not None
        return self.architecture, architecture.check(self.architecture)

    @property
    def source_sql(self) -> str:
        """SQL: the weights, or the text."""
        if self.model is not None:
            return f"({self.model.source.sql})"
        return f"decode('{base64.b64encode(self.content).decode()}', 'base64')"

    def to_json(self) -> dict[str, Any]:
        """What the version's details have of it; `bytes`: weights of nets stand in this order, then texts of trees."""
        key = "mst_key" if self.model is not None else "trial"
        return {"family": self.family, key: self.key, "weight": self.weight, "bytes": self.size, **self.info}


@dataclass
class Ensemble:
    """The members, largest weight first. `value`: of the `metric`, of their mean on `rows` rows, in `folds` if not 0; `alone`:
    of the best of `candidates` alone; `transform`: of the training rows, where trees are members; `decision`: on the mean's
    answers."""

    members: list[Member]
    metric: Metric
    value: float
    alone: float
    candidates: int
    rows: int
    folds: int
    transform: Transform
    decision: Decision | None

    @property
    def nets(self) -> list[Member]:
        """The members that are nets of Keras: linear models and perceptrons are, too."""
        return [member for member in self.members if member.family != trained.BOOSTING]

    @property
    def trees(self) -> list[Member]:
        return [member for member in self.members if member.family == trained.BOOSTING]

    def to_json(self) -> dict[str, Any]:
        """The key `ensemble` of a version's details."""
        members = [member.to_json() for member in self.members]
        return {
            "members": members,
            "metric": self.metric.name,
            "value": self.value,
            "best_alone": self.alone,
            "candidates": self.candidates,
            "rows": self.rows,
            **({"folds": self.folds} if self.folds else {}),
            **({} if self.decision is None else {"decision": self.decision.to_json()}),
        }

    def version(self, **more: Any) -> Version:
        """The version that has all members; `more`: its other values. One net is the version itself."""
        nets, trees = self.nets, self.trees
        models = [member.model for member in nets if member.model is not None]
        if self.decision is not None:
            fitted = with_shapes(models[0]) if models else self.transform
            more = {"transform": _decided(fitted, self.decision), **more}
        if len(self.members) == 1 and models:
            return version_of(models[0], **more)
        share, net = sum(member.weight for member in nets), None
        if nets:
            own = [(member.net[1], member.weight / share) for member in nets]
            net = nets[0].net[0] if len(nets) == 1 else ensemble.joined(own)
        if trees:
            shares = tuple((member.weight, member.size) for member in trees)
            net = ensemble.Mixture(net, share, sum(member.size for member in nets), shares).to_json()
        sql = " || ".join(member.source_sql for member in (*nets, *trees))
        source = weights.Source(f"SELECT {sql}", "an ensemble")
        if models:
            return version_of(models[0], net, source, **more)
        (target,) = self.transform.outputs
        kind = "regression" if target.is_numbers else "classification"
        assert net is not None
        values = {"transform": self.transform.to_json(), "target": target.name, "kind": kind, **more}
        return Version(architecture=net, source=source, **values)


@with_trainer
def mop_ensemble(
    db: Database,
    session: Session,
    model_table: str | None,
    validation_table: str | None,
    name: str | None,
    members: int | None,
    description: str | None,
    trained_on: str | None,
    families: str | None,
    time_limit: str | None,
    metric: str | None,
    balanced: bool | None,
    folds: bool | None,
) -> int:
    """Make the best mean of models of a table a version of the named model `name`; returns the version.

    `trained_on`: a packed table, on whose rows models of other `families` are trained for `time_limit`: candidates, too;
    `metric`: in which the mean is best; `balanced`: all classes count alike, as they did in the training of the nets; `folds`:
    the rows of `trained_on` choose, too, each by models of other folds.
    """
    Metric.read(metric)
    db.check_engine("mop_ensemble")
    most, seconds = members_of_call("members", members), trained.seconds_of(db, time_limit)
    if name is None or db.find_table(name) is None:
        db.output_table(name)
    else:
        check_writable(db, table_of(db, name))
    has_nets = model_table is not None or trained_on is None
    candidates = candidates_of(db, model_table, most) if has_nets else []
    is_balanced = all(_is_balanced(info) for info in candidates) if candidates else bool(balanced)
    if balanced not in (None, is_balanced):
        raise MopError(
            f'the classes of "{model_table}" have {"not " * (not is_balanced)}counted alike in training',
            hint="Leave out balanced.",
        )
    if folds:
        folded.check(db, has_nets, trained_on, validation_table)
    rows = Rows(db, validation_table, is_balanced, metric)
    if balanced and not rows.is_balanced:
        raise MopError("balanced needs classes, but the target has numbers", hint="Leave out balanced.")
    others = Others()
    if trained_on is not None:
        own = trained.families_of(families)
        is_needed = families is not None or not has_nets
        others.train(db, session, trained_on, rows, own, seconds, is_needed, by_folds=bool(folds))
    found = choose(db, session, model_table, candidates, rows, most, others)
    call = ", ".join(map(quote_literal, (model_table, validation_table, name)))
    limit = trained_on and f"{seconds:g} s"
    more = {"trained_on": trained_on, "families": families, "time_limit": limit, "metric": metric}
    arguments = "".join(f", {key} => {quote_literal(value)}" for key, value in more.items() if value is not None)
    arguments += ", balanced => true" * bool(balanced) + ", folds => true" * (others.rows is not None)
    statement = f"SELECT {db.extension}.mop_ensemble({call}, members => {most}{arguments});"
    details = {"ensemble": found.to_json(), **others.to_json()}
    return add_version(db, name, found.version(details=details, description=description, statement=statement))


class Others(dict[str, Trained]):
    """{family: its trials} of other families than nets, whose models may be members. `rows`: that choose among them, if not the
    validation rows alone; `seconds`: that their training took."""

    rows: Rows | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The keys of a version's details."""
        return {family: own.to_json() for family, own in self.items()}

    def train(
        self,
        db: Database,
        session: Session,
        packed_text: str | None,
        rows: Rows,
        families: Collection[str],
        seconds: float,
        is_needed: bool = True,
        most_trials: float | None = None,
        by_folds: bool = False,
        tell: Callable[[str, int, float | None], None] | None = None,
    ) -> None:
        """Train the `families` on a packed table, within `seconds`; `rows` judge. `is_needed`: where none of them can be
        trained for such rows, that is an error; `by_folds`: the training rows choose, too; `tell`: told of each family's trials
        so far. A family that fails is told; where all do, that is an error. Raises MopError."""
        began = time.monotonic()
        until = began + seconds * (1 - folded.SHARE * by_folds)
        _check_packed_alike(db, packed_text, rows)
        reasons = obstacles(rows.transform, families)
        possible = [family for family in trained.SHARES if reasons.get(family, "") is None]
        if is_needed and not reasons:
            raise MopError(
                "families names nets alone, which are not trained here", hint=f"families => '{trained.LINEAR}'"
            )
        if is_needed and not possible:
            raise MopError(
                f'"{packed_text}" can have nets alone: {"; ".join(str(reason) for reason in reasons.values())}',
                hint=f"families => '{trained.NETS}'",
            )
        given = db, session, packed_text, rows.target, rows.is_balanced, rows.metric
        problems: list[MopError] = []
        for number, family in enumerate(possible):
            part = max(LEAST_SECONDS, trained.share_of(possible[number:]) * (until - time.monotonic()))
            own_tell = None
            if tell is not None:
                own_tell = functools.partial(tell, family)
                own_tell(0, None)
            try:
                if family == trained.LINEAR:
                    self[family] = linear.train(*given, part, own_tell)
                elif family == trained.BOOSTING:
                    self[family] = boosting.train(*given, part, most_trials, own_tell)
                else:
                    self[family] = perceptrons.train(*given, part, most_trials, own_tell)
            except MopError as error:  # the other families answer without it
                problems.append(error)
                if len(problems) < len(possible):
                    text = f"the family {family} is not trained: {error.message}"
                    db.warning(text, detail=error.detail, hint=error.hint)
        if problems and not self:
            raise problems[-1]
        if by_folds:
            if tell is not None:
                tell("folds", sum(len(own.trials) for own in self.values()), None)
            self._let_all_choose(db, session, packed_text, rows, began + seconds - time.monotonic())
        self.seconds = time.monotonic() - began

    def _let_all_choose(
        self, db: Database, session: Session, packed_text: str | None, rows: Rows, seconds: float
    ) -> None:
        """Let the training rows choose, too, within `seconds`; a NOTICE tells where they cannot."""
        try:
            answered = folded.answered(
                db, session, packed_text, rows.target, rows.is_balanced, rows.metric, self, seconds
            )
        except MopError as error:  # the models are trained: the validation rows choose among them
            db.warning(f"only validation rows choose: {error.message}", detail=error.detail, hint=error.hint)
            return
        if answered is None:
            db.notice("only validation rows choose: the time or the memory is too short for folds of the training rows")
            return
        target, kept = answered
        self.rows = rows.judging(target)
        self.update({family: replace(own, kept=kept.get(family, [])) for family, own in self.items()})


def _check_packed_alike(db: Database, packed_text: str | None, rows: Rows) -> None:
    """Raises MopError where training rows are packed otherwise than the rows that judge."""
    with db.undone():  # (a lock of this session's would keep a failed call from dropping the table)
        packed = PackedTable(db, packed_text, "packed table of training rows")
        difference = rows.transform.difference(packed.shaped)
    if difference is not None:
        raise MopError(
            f'the rows of "{rows.text}" are not packed as those of "{packed_text}": {difference}',
            hint=f"SELECT {db.extension}.mop_pack(..., fitted_on => {quote_literal(packed_text)});",
        )


def obstacles(transform: Transform, families: Collection[str]) -> dict[str, str | None]:
    """Why these families but nets cannot be trained for rows of a transform; None: they can."""
    why = dict.fromkeys(trained.SHARES, dense_inputs.obstacle) | {trained.BOOSTING: boosting.obstacle}
    return {family: own(transform) for family, own in why.items() if family in families}


def members_of_call(name: str, value: int | None) -> int:
    """The most members of an ensemble, from an argument `name` of a call. Raises MopError."""
    most = ensemble.MOST if value is None else value
    if not 1 <= most <= ensemble.STEPS:
        raise MopError(
            f"{name} must be from 1 to {ensemble.STEPS}, not {most:g}",
            detail="It is the number of models whose answers may be averaged; 1 is the best alone.",
            hint=f"{name} => {ensemble.MOST}",
        )
    return most


def choose(
    db: Database,
    session: Session,
    model_table: str | None,
    candidates: Sequence[dict[str, Any]],
    rows: Rows,
    most: int,
    others: Others,
    seconds: float = math.inf,
) -> Ensemble:
    """The ensemble of at most `most` of the `candidates` among the models of a table and of the `others` that is best on
    validation rows. After `seconds`, no other net answers. Raises MopError."""
    ends = time.monotonic() + seconds
    rows = others.rows or rows
    tried: list[Member] = []
    answers: list[np.ndarray] = []
    shape: tuple[Any, ...] | None = None

    def take(family: str, own: Trained) -> None:
        for one in own.kept:
            # (all nets of an ensemble have as many units)
            if one.architecture is None or shape is None or shape[-1] == one.answers.shape[1]:
                content, net = one.content, one.architecture
                tried.append(Member(family, one.number, len(content), one.info, None, content, net))
                answers.append(rows.kept(one.answers))

    if trained.BOOSTING in others:
        take(trained.BOOSTING, others[trained.BOOSTING])
    with _computers(db, session) as computer_of:
        for info in candidates:
            if tried and time.monotonic() > ends:
                break
            db.check_cancel()
            model = StoredModel(db, model_table, info["mst_key"])
            rows.check_suits(model)
            if model.objects or model.weights is None:  # code, or weights in parts
                continue
            found, size = rows.answers(db, model, computer_of(model)), len(model.weights)
            own, model.weights = (*model.input_shapes, rows.units), None
            if not np.isfinite(found).all():
                continue
            if shape in (None, own):  # (not one unit for two classes among models of two units)
                shape = own
                answers.append(found)
                params = {name: info[name] for name in ("compile_params", "fit_params")}
                tried.append(Member(trained.NETS, info["mst_key"], size, params, model))
    for family, own_trials in others.items():
        if family != trained.BOOSTING:
            take(family, own_trials)
    if not tried:
        raise MopError(
            f'"{model_table}" has no models for an ensemble',
            detail=f"A member has weights of at most {MOST_BYTES // most >> 20} MB, layers of Keras, one output, and answers "
            f'that are finite for the rows of "{rows.text}".',
        )
    together = np.array(answers)
    shares = rows.select(together, most)
    if not shares.any():
        raise MopError(
            f'the rows of "{rows.text}" have no {rows.metric.name}: they lack a class',
            hint="Choose by another metric, or give more rows.",
        )
    for member, share in zip(tried, shares.tolist()):
        member.weight = share
    mean = np.sum([share * together[place].astype("f8") for place, share in enumerate(shares) if share], 0)
    members = sorted((m for m in tried if m.weight), key=lambda m: (-m.weight, m.family, m.key))
    transform = next((own.transform for own in others.values()), rows.transform)
    trained_on = with_shapes(members[0].model) if members[0].model is not None else transform
    decided = rows.decide(mean, trained_on)
    value, alone = rows.values(mean, together, decided)
    return Ensemble(members, rows.metric, value, alone, len(tried), rows.count, rows.folds, transform, decided)


def balanced_transform(model: StoredModel) -> dict[str, Any]:
    """The JSON of the transform of a model that was trained with balanced classes, whose probabilities it corrects."""
    fitted = with_shapes(model)
    counts = np.array(fitted.outputs[0].parameters["counts"], "f8")
    return _decided(fitted, calibration.balanced(counts / counts.mean()))


def _decided(fitted: Transform, made: Decision) -> dict[str, Any]:
    (target,) = fitted.outputs
    return replace(fitted, outputs=[target.with_parameters(target.name, **{decision.KEY: made.to_json()})]).to_json()


@dataclass(frozen=True)
class NetOf:
    """A net within a version's row: its architecture as SQL of the row `m`, and the place of its weights."""

    arch_sql: str
    first: int
    bytes: int


def nets_of(db: Database, table: Table, version: int) -> list[NetOf] | None:
    """The nets of a version of a model; None where the version is one net. Raises MopError."""
    row = db.one(
        f"SELECT model_arch::text AS arch, details->'ensemble'->'members' AS members, octet_length(model_weights) AS size "
        f"FROM {table} WHERE version = {version}"
    )
    assert row is not None
    with understood(f"the members of version {version} of {table} cannot be read"):
        mixture = ensemble.Mixture.read(row["arch"], row["size"])
        net, size, arch_sql = row["arch"], row["size"], "m.model_arch"
        if mixture is not None:
            net, size, arch_sql = mixture.net, mixture.net_bytes, "m.model_arch->'config'->'net'"
        if net is None:
            return []
        if row["members"] is None:  # a net that only looks like one of several
            return None
        places = ensemble.members_of(json.loads(net))
        members = json.loads(row["members"]) if places else []
        sizes = [member["bytes"] for member in members if member.get("family") != trained.BOOSTING]
        if not all(isinstance(one, int) and one >= 0 for one in sizes):
            raise ValueError("a number of bytes is none")
    if [len(sizes), sum(sizes)] != [len(places), size if places else 0]:
        raise MopError(
            f"the members of version {version} of {table} are unknown: its details have been changed",
            hint="Train with warm => false.",
        )
    if not places:
        return None if mixture is None else [NetOf(arch_sql, 0, size)]
    firsts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [
        NetOf(f"{arch_sql}->'config'->'layers'->{place}", first, own)
        for place, first, own in zip(places, firsts, sizes)
    ]


def _is_balanced(info: dict[str, Any]) -> bool:
    with understood("the fit_params of the model table cannot be read"):
        return params.parse_fit_params(info["fit_params"])["class_weight"] == "balanced"


def candidates_of(db: Database, model_table: str | None, most: int) -> list[dict[str, Any]]:
    """The rows of the info table of the best models that may be members, best first. Raises MopError."""
    table = db.input_table(model_table, "model table")
    info = db.input_table(db.suffixed(str(model_table), "_info"), "info table of the model table")
    return db.execute(
        f"SELECT i.mst_key, i.model_id, i.compile_params, i.fit_params FROM {info} i JOIN {table} m USING (mst_key) "
        f"WHERE octet_length(m.model_weights) <= {MOST_BYTES // most} "
        f"ORDER BY (to_json(i)->>'validation_loss_final')::float8 NULLS LAST, i.mst_key LIMIT {CANDIDATES}"
    )


@contextlib.contextmanager
def _computers(db: Database, session: Session) -> Iterator[Callable[[StoredModel], Computer]]:
    """Context manager: gives, for a model, the function that computes its output. The trainer starts when a model needs it."""
    with contextlib.ExitStack() as stack:
        trainers: list[Any] = []

        def in_trainer(arrays: Sequence[np.ndarray]) -> np.ndarray:
            header = {"op": "predict", "shapes": [list(array.shape) for array in arrays]}
            trainers[0].send(header, *(np.ascontiguousarray(a, "<f4").reshape(-1).view(np.uint8) for a in arrays))
            answer, payloads = trainers[0].receive()
            return np.frombuffer(payloads[0], "<f4").reshape(answer["shapes"][0]).copy()

        def computer_of(model: StoredModel) -> Computer:
            assert model.weights is not None
            if forward.obstacle(model.architecture_text, len(model.weights)) is None:
                net = forward.compiled(model.architecture, model.weights)
                return lambda arrays: net(arrays)[0]
            if not trainers:
                trainers.append(stack.enter_context(trainer_of(session, trainer_options(db, False))))
            model.lend(trainers[0], db)
            return in_trainer

        yield computer_of


class Rows:
    """Validation rows. `target`: their inputs, truth and weights; `metric`: that judges; `units`: of the output that answered
    last; `transform`: of the rows; `text`: the packed table, as the caller calls it; `folds`: of these rows, each of which was
    answered by models of the others; 0: no model was trained on any."""

    def __init__(self, db: Database, text: str | None, is_balanced: bool, metric: str | None = None) -> None:
        """Read them; `is_balanced`: training lets all classes count alike. Raises MopError where there are several targets, or
        where the metric does not suit them."""
        packed = PackedTable(db, text, "validation table")
        self.text, self.transform, self._schema = packed.text, packed.shaped, db.extension
        if len(packed.outputs) != 1:
            raise MopError(f'"{packed.text}" has {len(packed.outputs)} targets: a named model has one')
        (target,) = packed.shaped.outputs
        self.metric = Metric.of_call(metric, target.is_numbers, target.name)
        self.is_balanced, self._is_classes = is_balanced and not target.is_numbers, not target.is_numbers
        most = max(LEAST_ROWS, MOST_BYTES // (4 * math.prod(target.shape) * MOST_TRIED))
        self._is_log_loss = self.metric.name == "log_loss"  # it needs the probability of one class of a row alone
        arrays = packed_rows.read(db, packed, MOST_ROWS if self._is_log_loss else min(MOST_ROWS, most), MOST_BYTES)
        self._most, self.folds = most, 0
        self._take(trained.target_of(packed, arrays, self.is_balanced))

    def judging(self, target: Target) -> Rows:
        """Other rows, with these and as these, which judge in their place."""
        rows = copy.copy(self)
        rows.folds = folded.FOLDS
        rows._take(target)
        return rows

    def _take(self, target: Target) -> None:
        self.target = target
        self.inputs, self._truth, self.count = self.target.inputs, self.target.truth, len(self.target.truth)
        self._own_weights = self.target.own_weights
        self._codes = self._truth.argmax(1)
        self._keeps_all = not self._is_log_loss or self.count <= self._most
        is_ranked = self.metric.name in OF_RANKS or self._truth.shape[1] == 2 and self.metric.name in WITH_THRESHOLD
        classes = self._truth.shape[1] if self._truth.shape[1] > 2 else 1
        self._is_ranked = is_ranked
        self._step = max(1, math.ceil(self.count * classes / MOST_RANKED)) if is_ranked else 1
        self._judge = self._judge_of(self.transform.outputs[0], slice(None))

    def _judge_of(self, target: Column, part: slice | np.ndarray) -> Judge:
        """A judge of answers for a part of the rows."""
        weights = self.target.weights
        if self.is_balanced and self.metric.name in OF_THE_SHARES:
            weights = self._own_weights
        weights = None if weights is None else weights[part]
        if self._is_classes:
            return judge_of_classes(self.metric, self._codes[part], self._truth.shape[1], weights)
        if weights is not None:
            weights = np.repeat(weights, self._truth.shape[1])
        truth = target.restored(self._truth[part].reshape(-1).astype("f8"), False)
        return judge_of_numbers(self.metric, truth, weights, target.restored)

    def kept(self, outputs: np.ndarray) -> np.ndarray:
        """What is kept of a model's outputs [rows, width]: all, or what the metric needs."""
        if not self._is_classes:
            return outputs.reshape(-1)
        return outputs.astype("f4") if self._keeps_all else self._judge.taken(outputs)

    def select(self, answers: np.ndarray, most: int) -> np.ndarray:
        """The share of each model; `answers`: what is kept of each, [models, ...]. All are 0 where no model can be judged.

        Of few rows, samples of them select, and the shares are means: the best selection for all rows is the luckiest (Caruana
        et al. 2004, section 2.3, which samples models). On all rows, the mean is not worse than the best model alone.
        """
        rows = np.arange(0, self.count, self._step)
        alone = self._selected(answers, rows, most)
        cost = RANKED_COST if self._is_ranked else 1
        samples = min(SAMPLES, SAMPLED_ROWS // (cost * len(rows))) if most > 1 else 0
        if samples < 2 or not alone.any():
            return alone
        random = np.random.default_rng(len(rows))
        drawn = [self._selected(answers, random.choice(rows, len(rows)), most) for _ in range(samples)]
        shares = sum((own for own in drawn if own.any()), np.zeros(len(answers)))
        shares[np.argsort(-shares, kind="stable")[most:]] = 0
        if not shares.any():
            return alone
        shares /= shares.sum()
        judge = self._judge_of(self.transform.outputs[0], rows)
        kept = self._taken(answers[:, rows], judge)
        mean = np.sum([share * kept[place].astype("f8") for place, share in enumerate(shares) if share], 0)
        return shares if float(judge.loss(mean)) <= float(np.nanmin(judge.loss(kept))) else alone

    def _selected(self, answers: np.ndarray, rows: np.ndarray, most: int) -> np.ndarray:
        """The share of each model, selected by some rows."""
        judge = self._judge_of(self.transform.outputs[0], rows)
        counts = ensemble.select(self._taken(answers[:, rows], judge), judge.selecting, most=most)
        return counts / max(1, counts.sum())

    def _taken(self, answers: np.ndarray, judge: Judge) -> np.ndarray:
        return judge.taken(answers) if self._is_classes and self._keeps_all else answers

    def values(self, mean: np.ndarray, answers: np.ndarray, made: Decision | None) -> tuple[float, float]:
        """The metric of a mean with its decision, and that of the best model alone. Balanced classes are judged without it:
        it corrects the probabilities to other shares than those that judge."""
        if made is not None and self._keeps_all and not self.is_balanced:
            mean = made.decided(mean) if self.metric.name in OF_DECISIONS else made.probabilities(mean)
        own, others = (self._judge.loss(self._taken(kept, self._judge)) for kept in (mean, answers))
        return self.metric.of_loss(float(own)), self.metric.of_loss(float(np.nanmin(others)))

    def decide(self, mean: np.ndarray, trained_on: Transform) -> Decision | None:
        """The decision on a mean's probabilities; `trained_on`: the transform of the training rows."""
        (target,) = trained_on.outputs
        if not isinstance(target, OneHot):
            return None
        factors = None
        if self.is_balanced:  # (MADlib's transforms have no counts)
            counts = target.parameters.get("counts") or np.bincount(self._codes, minlength=self._truth.shape[1])
            factors = np.array(counts, "f8") / np.mean(counts)
        if not self._keeps_all:
            return None if factors is None else calibration.balanced(factors)
        return calibration.decide(self.metric, mean, self._codes, self._own_weights, factors)

    def check_suits(self, model: StoredModel) -> None:
        """Raises MopError where a model takes rows that are packed otherwise."""
        difference = self.transform.difference(model.transform)
        if difference is not None:
            raise MopError(
                f'the rows of "{self.text}" are not packed as those of {model.what}: {difference}',
                hint=f"SELECT {self._schema}.mop_pack(..., fitted_on => 'packed training table');",
            )

    def answers(self, db: Database, model: StoredModel, compute: Computer) -> np.ndarray:
        """What is kept of a model's answers for all rows. Raises MopError."""
        found = []
        for start in range(0, self.count, CHUNK_ROWS):
            db.check_cancel()
            part = slice(start, start + CHUNK_ROWS)
            outputs = compute([array[part] for array in self.inputs])
            self.units = outputs.shape[-1]
            found.append(self._of_classes(model, outputs) if self._is_classes else self._numbers(model, outputs, part))
        return self.kept(np.concatenate(found))

    def _numbers(self, model: StoredModel, outputs: np.ndarray, part: slice) -> np.ndarray:
        if not model.regression or outputs.shape != self._truth[part].shape:
            raise MopError(f"{model.what} has soft labels or several steps: their mean is no ensemble")
        return outputs

    def _of_classes(self, model: StoredModel, outputs: np.ndarray) -> np.ndarray:
        if outputs.ndim != 2:
            raise MopError(f"{model.what} has an output of several steps, which a named model cannot answer with")
        if outputs.shape[1] == 1 and self._truth.shape[1] == 2:
            outputs = np.concatenate([1 - outputs, outputs], 1)
        elif not np.allclose(outputs.sum(1), 1, atol=0.01, equal_nan=True) or outputs.min(initial=0) < 0:
            raise MopError(
                f"{model.what} gives no probabilities of classes", hint="Its output needs the activation softmax."
            )
        return outputs
