"""Measured costs of training in earlier runs, by net and kernel.

They save a trainer from timing the kernels of a net again, and they give an estimate for a run before a unit has ended. The
kernel autotuner compares the least seconds of a mini-batch, which other work on the machine disturbs least. A plan counts the
typical ones: those of whole units.
"""

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MODEL, HEAD = "model", "head"  # parts that are trained: a whole net, or the rest of it after a frozen prefix
MOST_DEVICES = 16  # combinations of device and versions whose costs are sent to a trainer

Row = Mapping[str, Any]  # a row of the view mop_unit_costs
Where = tuple[str, str, str, str, str]  # (net, part, version, device, place)


@dataclasses.dataclass(frozen=True)
class Net:
    """Everything that decides the seconds of a mini-batch except kernel and device.

    `digest` is equal for nets with the same compiled model and the same batches. `architecture` is the digest of the
    architecture alone. The other fields are for people.
    """

    architecture: str
    digest: str
    optimizer: str
    loss: str
    batch_size: int
    shape: str

    @classmethod
    def of(
        cls, architecture: str, compile_params: Mapping[str, Any], fit: Mapping[str, Any], shape: str, framework: str
    ) -> "Net":
        """The net of a configuration.

        `architecture`: JSON text; `compile_params`: parsed, without scalars; `fit`: parsed fit parameters; `shape`: the
        shape of a row (text); `framework`: the setting pg_mop.keras_backend.
        """
        facts = [
            architecture,
            compile_params,
            fit["batch_size"],
            fit["dropout"],
            fit["class_weight"] is not None,
            shape,
            framework,
        ]
        return cls(
            digest(architecture),
            digest(json.dumps(facts, sort_keys=True, default=str)),
            compile_params["optimizer"],
            str(compile_params["loss"]),
            fit["batch_size"],
            shape,
        )


def digest(text: str) -> str:
    """32 hexadecimal digits that identify a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CostHistory:
    """Costs that earlier runs of the role have measured, read once for each architecture, at the first question."""

    def __init__(self, read: Callable[[str], Iterable[Row]] = lambda architecture: ()) -> None:
        """`read`: gives the rows of the view mop_unit_costs for the digest of an architecture."""
        self._read = read
        self.threads: int | None = None  # of the run's trainers (mop_udf/kernels/device.py writes them); None: of any
        self._rows: dict[str, list[Row]] = {}
        self._hints: dict[Net, dict[str, list] | None] = {}

    def hints(self, net: Net) -> dict[str, list] | None:
        """The costs that a trainer's kernel autotuner gets for a net; None without any.

        "known": rows of the net itself; "alike": rows of other nets of its architecture. A row is [part, version,
        device, kernel, seconds of a batch, seconds to compile, number of runs that measured them]. In rows of "alike",
        the seconds of a batch are a multiple of those of the kernel "loop".
        """
        if net not in self._hints:  # (computed once: every unit asks)
            self._hints[net] = self._compute_hints(net)
        return self._hints[net]

    def batch_seconds(self, net: Net, place: str | None = None) -> float | None:
        """Seconds of a mini-batch of a typical unit: the median over devices; None if unknown.

        `place`: the server that holds the rows, None for the coordinator's own. Costs of other places count only where
        nothing was measured at this one, so that servers of unequal speed are told apart.
        """
        by_device: dict[Where, list[Row]] = {}
        for row in self.measured(net, place):
            by_device.setdefault(_where(row), []).append(row)
        return statistics.median(typical(rows).seconds for rows in by_device.values()) if by_device else None

    def measured(self, net: Net, place: str | None = None, threads: int | None = None) -> list[Row]:
        """The rows of the net itself, of each kernel, device and version: those of a place, or of all places where that has
        none; and of them, those of trainers with `threads`. Without that: with the run's threads, or with any where none had
        these."""
        rows = [row for row in self._rows_of(net) if row["net"] == net.digest]
        rows = [row for row in rows if row.get("place", "") == (place or "")] or rows
        wanted = [row for row in rows if row["device"].endswith(f", {threads or self.threads} threads")]
        return wanted if wanted or threads else rows

    def most_bytes(self, net: Net, on_gpu: bool) -> int:
        """The most bytes of its device's memory that trainers of the net held in earlier runs; 0: unknown. (Trainers that
        divided the net among several devices held less of each.)"""
        # (mop_udf/kernels/device.py describes a device without a GPU by its threads)
        found = [
            row
            for row in self._rows_of(net)
            if row["net"] == net.digest
            and row["device"].endswith(" threads") is not on_gpu
            and ", divided by " not in row["device"]
        ]
        return max((row.get("memory_bytes") or 0 for row in found), default=0)

    def _rows_of(self, net: Net) -> list[Row]:
        if net.architecture not in self._rows:
            self._rows[net.architecture] = list(self._read(net.architecture))
        return self._rows[net.architecture]

    def _compute_hints(self, net: Net) -> dict[str, list] | None:
        rows = self._rows_of(net)
        known = [row for row in rows if row["net"] == net.digest]
        loops = {_where(row): row["batch_seconds"] for row in rows if row["kernel"] == "loop"}
        ratios: dict[tuple, list[tuple[float, Row]]] = {}
        for row in rows:
            if row["net"] != net.digest and (base := loops.get(_where(row))) and row["kernel"] != "loop":
                ratios.setdefault((row["part"], row["version"], row["device"], row["kernel"]), []).append(
                    (row["batch_seconds"] / base, row)
                )
        alike = [_hint(pairs[0][1], statistics.median(ratio for ratio, _ in pairs)) for pairs in ratios.values()]
        hints = {"known": [_hint(row, row["batch_seconds"]) for row in _latest(known)], "alike": alike[:MOST_DEVICES]}
        return {name: values for name, values in hints.items() if values} or None


class Typical(NamedTuple):
    """Seconds of a mini-batch on a device, and the kernel that most units had. `of_units`: they are of whole units, with all
    that a trainer does for one; else the least of timed mini-batches, since no unit without a compilation is known."""

    seconds: float
    kernel: str
    of_units: bool


def typical(rows: Sequence[Row]) -> Typical:
    """What mini-batches of a net take on one device: the seconds of the typical unit of each kernel, in the shares in which the
    last run used the kernels. (The trainers of a run may have compiled different ones.) `rows`: at least one, of one device."""
    used = [row for row in rows if row.get("units") and row.get("unit_seconds")]
    last = max((str(row["noted_at"]) for row in used), default="")
    used = [row for row in used if str(row["noted_at"]) == last]
    if not used:
        best = min(rows, key=lambda row: row["batch_seconds"])
        return Typical(best["batch_seconds"], best["kernel"], False)
    units = sum(row["units"] for row in used)
    most = max(used, key=lambda row: row["units"])
    return Typical(sum(row["unit_seconds"] * row["units"] for row in used) / units, most["kernel"], True)


def _where(row: Row) -> Where:
    return row["net"], row["part"], row["version"], row["device"], row.get("place", "")


def _latest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the MOST_DEVICES devices that were measured last."""
    newest = sorted(
        {_where(row): row["noted_at"] for row in sorted(rows, key=lambda row: row["noted_at"])}.items(),
        key=lambda item: item[1],
    )
    kept = {where for where, _ in newest[-MOST_DEVICES:]}
    return [row for row in rows if _where(row) in kept]


def _hint(row: Row, seconds: float) -> list:
    return [row["part"], row["version"], row["device"], row["kernel"], seconds, row["compile_seconds"], row["runs"]]
