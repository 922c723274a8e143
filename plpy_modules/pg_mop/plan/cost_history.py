"""What training has cost in earlier runs, by net and kernel: so that a kernel need not be found out again, and what a
run will take is known before a unit has ended."""

import dataclasses
import hashlib
import json
import statistics

MODEL, HEAD = "model", "head"  # what is trained: all of a net, or what is left of it after a frozen prefix
MOST_DEVICES = 16  # kinds of device, and versions, of which a trainer is told


@dataclasses.dataclass(frozen=True)
class Net:
    """What decides the seconds of a mini-batch, but for kernel and device: `digest` is equal for what is compiled alike
    and has batches alike; `architecture`, a digest too, for one architecture. The rest is there to be read."""

    architecture: str
    digest: str
    optimizer: str
    loss: str
    batch_size: int
    shape: str

    @classmethod
    def of(cls, architecture, compile_params, fit, shape, framework):
        """Of an architecture (JSON text), compile parameters without scalars and fit parameters, both parsed; `shape`:
        of a row (text); `framework`: pg_mop.keras_backend."""
        own = [
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
            digest(json.dumps(own, sort_keys=True, default=str)),
            compile_params["optimizer"],
            str(compile_params["loss"]),
            fit["batch_size"],
            shape,
        )


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CostHistory:
    """What earlier runs of the role have measured of nets, read for each architecture when it is asked for first.

    `read(architecture)`: rows (dicts) of the view mop_unit_costs.
    """

    def __init__(self, read=lambda architecture: ()):
        self._read, self._rows, self._told = read, {}, {}

    def _of(self, net):
        if net.architecture not in self._rows:
            self._rows[net.architecture] = list(self._read(net.architecture))
        return self._rows[net.architecture]

    def told(self, net):
        """What a trainer is told of a net, or None: {"known": rows of the net, "alike": rows of others of its
        architecture}; a row is [part, version, device, kernel, seconds of a batch, seconds to compile, runs that have
        measured them]; of others the first are a multiple of the loop's."""
        if net not in self._told:  # (every unit asks)
            self._told[net] = self._tell(net)
        return self._told[net]

    def _tell(self, net):
        rows = self._of(net)
        known = [row for row in rows if row["net"] == net.digest]
        loops = {_where(row): row["batch_seconds"] for row in rows if row["kernel"] == "loop"}
        ratios = {}
        for row in rows:
            if row["net"] != net.digest and (base := loops.get(_where(row))) and row["kernel"] != "loop":
                ratios.setdefault((row["part"], row["version"], row["device"], row["kernel"]), []).append(
                    (row["batch_seconds"] / base, row)
                )
        alike = [_row(own[0][1], statistics.median(ratio for ratio, _ in own)) for own in ratios.values()]
        told = {"known": [_row(row, row["batch_seconds"]) for row in _latest(known)], "alike": alike[:MOST_DEVICES]}
        return {what: own for what, own in told.items() if own} or None

    def batch_seconds(self, net):
        """Seconds of a mini-batch by the best kernel, the median of the devices; None where nobody knows."""
        best = {}
        for row in self._of(net):
            if row["net"] == net.digest:
                where = _where(row)
                best[where] = min(row["batch_seconds"], best.get(where, row["batch_seconds"]))
        return statistics.median(best.values()) if best else None


def _where(row):
    return row["net"], row["part"], row["version"], row["device"]


def _latest(rows):
    """The rows of those devices that were met last."""
    newest = sorted(
        {_where(row): row["noted_at"] for row in sorted(rows, key=lambda row: row["noted_at"])}.items(),
        key=lambda item: item[1],
    )
    kept = {where for where, _ in newest[-MOST_DEVICES:]}
    return [row for row in rows if _where(row) in kept]


def _row(row, seconds):
    return [row["part"], row["version"], row["device"], row["kernel"], seconds, row["compile_seconds"], row["runs"]]
