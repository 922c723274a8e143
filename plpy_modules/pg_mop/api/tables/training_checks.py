"""The warnings of mop_train: timeouts that would end the call, and rows or columns that make its measures too good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pg_mop.api.tables import reports
from pg_mop.api.tables.steps import Steps
from pg_mop.backend import transaction
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.inference.named_model import NamedModel

END_SECONDS = 2.0  # beyond 1.1 times the time limit, that a call may take
SHORT_SECONDS = 20.0  # a limit below which the start of the trainers and the first nets' compilation count
MOST_COMPARED = 300_000  # training rows that test rows are compared with
COPIES = 0.1  # a larger share of test rows that are training rows, too, is told
DISTINCT = 0.05  # a smaller share of different rows: rows of few values are equal by nature
RARE = 0.05  # a class with a smaller share is rare
RATIO = 1e4  # between the 99th and the first percentile of a target with a long tail
TOO_GOOD, ALONE = 0.995, 0.8  # a measure that is told, and the share of it that one column may explain
MOST_COLUMNS = 100  # that are permuted


def seconds_until_timeout(db: Database, seconds: float) -> float:
    """The seconds of training, of `seconds` wanted ones, that the session's timeouts leave. Raises MopError for too few."""
    rows = db.execute(
        "SELECT name, setting::float8 / 1000 - extract(epoch FROM clock_timestamp() - CASE name WHEN 'statement_timeout' "
        "THEN statement_timestamp() ELSE now() END) AS left, current_setting(name) AS text FROM pg_settings "
        "WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0' ORDER BY 2 LIMIT 1"
    )
    if not rows:
        return seconds
    (first,) = rows
    usable = (first["left"] - END_SECONDS) / 1.1
    if usable >= seconds:
        return seconds
    hint = f"SET {first['name']} = 0;"
    if usable < 1:
        raise MopError(
            f"{first['name']} ({first['text']}) would cancel this call before it has trained",
            hint=hint,
            sqlstate="22023",
        )
    db.warning(
        f"time_limit is {usable:.0f} s, not {seconds:.0f} s: {first['name']} ({first['text']}) would cancel the call",
        hint=hint,
    )
    return usable


def tell_beginning(db: Database, name: str, seconds: float) -> None:
    """Tell the caller that the model depends on the connection, and on the COMMIT of an open transaction; and that a short
    time limit may be exceeded."""
    if transaction.is_in_block():
        db.notice(f'model "{name}" exists for other sessions from the COMMIT of this transaction on')
    limit = "large tables train on as many rows as fit"
    if seconds < SHORT_SECONDS:
        limit = "a limit so short may be exceeded by seconds, since trainers must start and nets be compiled"
    db.info(
        f'training model "{name}" for {seconds:.0f} s ({limit}), in this session: if the connection is lost, so is the model. '
        f"SELECT {db.extension}.mop_submit(...) trains without a connection. {db.extension}.mop_trainings shows other sessions "
        "what the call does."
    )


# The checks before training read the parts in the session of the steps: the caller's locks would last until its transaction
# ends, and so keep a failed call from dropping them.


PINNED = "SET LOCAL search_path = pg_catalog, pg_temp;"


def read(steps: Steps, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query of the steps' relations."""
    return steps.run(f"{PINNED} {sql}")


def tell_copies(
    db: Database, steps: Steps, train: str, test: str, columns: Sequence[str], rows: dict[str, int]
) -> None:
    """Tell the caller of rows that are in the training part and in the test part. `columns`: that training uses."""
    if not 1 < rows["train"] <= MOST_COMPARED or not columns:
        return
    row = f"md5(ROW({', '.join(map(quote_identifier, columns))})::text)"
    ((distinct, copies),) = read(
        steps,
        f"WITH seen AS (SELECT DISTINCT {row} AS h FROM {train}) SELECT (SELECT count(*) FROM seen), "
        f"(SELECT count(*) FROM (SELECT {row} AS h FROM {test}) t WHERE h IN (SELECT h FROM seen))",
    )
    if copies > COPIES * rows["test"] and distinct > DISTINCT * rows["train"]:
        db.warning(
            f"{copies} of the {rows['test']} test rows are training rows, too, but for their id",
            detail="The measures tell how well the model remembers them.",
            hint="Train on SELECT DISTINCT ..., or with split => 'group', by => a column that all copies of a row share.",
        )


def tell_rare_class(db: Database, steps: Steps, train: str, target: str) -> None:
    """Tell the caller of two classes with very different numbers of rows."""
    name = quote_identifier(target)
    counts = read(steps, f"SELECT {name}::text, count(*) FROM {train} GROUP BY 1 ORDER BY 2 LIMIT 3")
    total = sum(count for _, count in counts)
    if len(counts) == 2 and counts[0][1] < RARE * total:
        (rare, count), (common, others) = counts
        db.warning(
            f'{100 * count / total:.1f} % of the training rows have class "{rare}": a model that never predicts '
            "it has a high accuracy",
            detail=f'A model that always predicts "{common}" has accuracy {others / total:.3f}. Read auc and the '
            "probabilities, not accuracy.",
            hint="weight => 'balanced' makes both classes count alike.",
        )


def tell_long_tail(db: Database, steps: Steps, train: str, target: str) -> None:
    """Tell the caller of a target of one sign whose values differ by decades."""
    name = f"{quote_identifier(target)}::float8"
    ((low, high, least, most),) = read(
        steps,
        f"SELECT percentile_disc(0.01) WITHIN GROUP (ORDER BY abs({name})), percentile_disc(0.99) WITHIN GROUP "
        f"(ORDER BY abs({name})), min(sign({name})), max(sign({name})) FROM {train}",
    )
    if low and least == most and high / low >= RATIO:
        name, log = quote_identifier(target), json.dumps({target: "log"})
        hint = f"Where relative errors count: metric => 'rmsle', or transform => {quote_literal(log)} trains the logarithm."
        if most < 0:
            hint = (
                f"Train on the logarithm: SELECT *, ln(-{name}) AS log_{target} FROM ...; with exclude => '{target}'."
            )
        db.warning(
            f'98 % of the values of target "{target}" are between {low:.3g} and {high:.3g}, without the sign',
            detail="The largest values decide what is learned; errors of small ones hardly count.",
            hint=hint,
        )


def tell_giveaway(
    db: Database, session: Any, model: NamedModel, part: str, main: str, measured: float, without: float
) -> None:
    """Tell the caller of a column that alone explains a measure that is too good. `without`: the measure of a model that knows
    the target's distribution alone."""
    columns = sum(len(getattr(column, "features", [0])) for column in model.inputs)
    if measured < TOO_GOOD or without > TOO_GOOD - 0.05 or columns > MOST_COLUMNS:
        return
    (name, loss, _), *others = reports.importance(db, session, model, part)
    if loss >= ALONE * (measured - without) and not (others and others[0][1] > loss / 2):
        db.warning(
            f'column "{name}" alone explains the target: {main} is {measured:.3f}, and {measured - loss:.3f} where that column '
            "is permuted",
            detail="Such a column is often filled after the target is known, and so is not known when the model is asked.",
            hint=f"exclude => '{name}' trains without it.",
        )
