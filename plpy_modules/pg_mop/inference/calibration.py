"""The decision of a version: temperature and threshold, chosen on the validation rows. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pg_mop.backend.arrays import np
from pg_mop.columns.decision import Decision
from pg_mop.inference.metrics import LEAST, WITH_THRESHOLD, Metric, Ranking

LEAST_ROWS = 1000  # that choose a temperature, or a threshold of the accuracy: on fewer, both are noise
LOWEST, HIGHEST = 0.2, 5.0  # temperatures
STEPS = 30  # of the search for the temperature
SURE = 2.0  # standard errors by which a choice must be better on rows that have not made it


def decide(
    metric: Metric,
    probabilities: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray | None = None,
    factors: np.ndarray | None = None,
) -> Decision | None:
    """The decision for a model with the `probabilities` [rows, classes] for validation rows of the classes `codes`; None:
    it needs none. `weights`: of the rows; `factors`: of the classes, where training balanced them."""
    own = np.ones(len(codes)) if weights is None else weights
    found = Decision(factors=None if factors is None else tuple(factors.tolist()))
    if len(codes) >= LEAST_ROWS:
        found = _with_temperature(found, probabilities, codes, own)
    decided_by = None
    if probabilities.shape[1] == 2:
        threshold = _threshold(metric, found.probabilities(probabilities)[:, 1], codes == 1, own)
        decided_by = None if threshold is None else Decision.of_threshold(threshold)
    if decided_by is None and factors is not None:
        decided_by = balanced(factors).weights
    found = Decision(found.temperature, found.factors, decided_by)
    return found if found.to_json() else None


def balanced(factors: np.ndarray) -> Decision:
    """The decision after a training that counts all classes alike: probabilities are corrected to the shares of the classes in
    the table (`factors`), and the balanced ones decide, as training has them."""
    inverse = np.divide(1, factors, out=np.zeros(len(factors)), where=factors > 0)
    return Decision(factors=tuple(factors.tolist()), weights=tuple((inverse / inverse.max()).tolist()))


def _with_temperature(decision: Decision, outputs: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> Decision:
    """The decision with the temperature of the least log loss, if that of one half is better on the other half."""

    def losses(temperature: float, rows: np.ndarray) -> np.ndarray:
        own = Decision(temperature, decision.factors).probabilities(outputs[rows])
        return -np.log(np.maximum(own[np.arange(len(own)), codes[rows]], LEAST))

    def best(rows: np.ndarray) -> float:
        return _least(lambda temperature: float(losses(temperature, rows) @ weights[rows]))

    if not _is_better(lambda rows, others: losses(1.0, others) - losses(best(rows), others), weights):
        return decision
    return Decision(round(best(np.arange(len(codes))), 4), decision.factors)


def _least(loss: Callable[[float], float]) -> float:
    """The temperature of the least loss, which is convex in its inverse: by golden sections of its logarithm."""
    low, high, part = np.log(LOWEST), np.log(HIGHEST), (np.sqrt(5) - 1) / 2
    places = [high - part * (high - low), low + part * (high - low)]
    values = [loss(float(np.exp(place))) for place in places]
    for _ in range(STEPS):
        if values[0] <= values[1]:
            high, places, values = places[1], [0.0, places[0]], [0.0, values[0]]
            places[0] = high - part * (high - low)
            values[0] = loss(float(np.exp(places[0])))
        else:
            low, places, values = places[0], [places[1], 0.0], [values[1], 0.0]
            places[1] = low + part * (high - low)
            values[1] = loss(float(np.exp(places[1])))
    return float(np.exp((low + high) / 2))


def _threshold(metric: Metric, chances: np.ndarray, is_second: np.ndarray, weights: np.ndarray) -> float | None:
    """The threshold of the best measure; None where 0.5 is as good, or where the measure needs none."""
    if is_second.all() or not is_second.any():
        return None
    if metric.name in WITH_THRESHOLD:
        return _best_threshold(metric.name, chances, is_second, weights)
    if metric.name != "accuracy" or len(chances) < LEAST_ROWS:
        return None

    def gained(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        own = _best_threshold("accuracy", chances[rows], is_second[rows], weights[rows])
        right = [(chances[others] >= limit) == is_second[others] for limit in (own, 0.5)]
        return right[0].astype("f8") - right[1]

    return _best_threshold("accuracy", chances, is_second, weights) if _is_better(gained, weights) else None


def _best_threshold(name: str, chances: np.ndarray, is_second: np.ndarray, weights: np.ndarray) -> float:
    """The threshold of the best measure, of equal ones the nearest to 0.5: in the middle between two rows."""
    ranked = Ranking(chances, is_second, weights)
    values = ranked.of_thresholds(name)
    below = np.append(ranked.chances[1:], 0.0)
    middles = (ranked.chances + below) / 2
    equal = np.flatnonzero(values >= values.max() * (1 - 1e-9))
    return float(middles[equal[np.abs(middles[equal] - 0.5).argmin()]])


def _is_better(gained: Callable[[np.ndarray, np.ndarray], np.ndarray], weights: np.ndarray) -> bool:
    """Whether a choice is better beyond noise. `gained`: (rows that choose, others) -> what each of the others gains."""
    halves = np.arange(0, len(weights), 2), np.arange(1, len(weights), 2)
    gains = np.concatenate([gained(halves[0], halves[1]), gained(halves[1], halves[0])])
    own = np.concatenate([weights[halves[1]], weights[halves[0]]])
    own = own / own.sum()
    mean = float(gains @ own)
    error = float(np.sqrt(((gains - mean) ** 2) @ own**2))
    return mean > SURE * error
