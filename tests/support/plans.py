"""Plans and workloads without a database."""

import json

from mop_udf.params import parameter_resolver
from pg_mop.engines.base import Segment
from pg_mop.plan import identity
from pg_mop.plan.cost_history import CostHistory
from pg_mop.plan.planner import Planner, Workload
from pg_mop.plan.stages import Plan


def chains(configurations, iterations, metrics=()):
    """The plan of fit_multiple: configurations from 1 that share nothing."""
    plan = Plan()
    for key in range(1, configurations + 1):
        plan.ask(key, identity.root({"mst_key": key}), lambda iteration, key=key: ("", str(key)), iterations, metrics)
    return plan


OPTIONS = {
    "keras_backend": "tensorflow",
    "kernel": "auto",
    "sharing": True,
    "same_start": True,
    "share_prefixes": True,
    "scheduler": "randomized",
    "sessions": None,
    "threads": None,
    "trainers": None,
    "cache_mb": 1024,
    "replicas": 1,
}


DENSE = json.dumps({"class_name": "Sequential", "config": {"layers": []}})


def segment(key, rows=100, server=None, fingerprint="f"):
    return Segment(key, rows, rows * 100, f"{fingerprint}{key}", server, "t", "SELECT 1")


def workload(segments=4, iterations=3, metrics=(3,), servers=None, **changes):
    options = {**OPTIONS, **changes.pop("options", {})}
    found = {("training", k): segment(k, server=servers[k] if servers else None) for k in range(segments)}
    return Workload(
        table=7,
        columns=(["x"], ["y"]),
        shape="4 -> 3",
        segments=found,
        options=options,
        seed=5,
        num_iterations=iterations,
        metrics_iterations=metrics,
        **changes,
    )


def configuration(key, rate=0.1, architecture=DENSE, fit="batch_size=10, epochs=2"):
    resolver = parameter_resolver.Resolver(f"loss='mse', optimizer='SGD(learning_rate={rate})', metrics=['mae']", fit)
    return {
        "mst_key": key,
        "model_id": 1,
        "model_arch": architecture,
        "weights_md5": None,
        "functions": [],
        "resolver": resolver,
        "fit": resolver.fit,
    }


def planned(work, configurations, misfits=(), history=None):
    planner = Planner(work, configurations, history)
    planner.ask_for_all(configurations, misfits)
    return planner


def measured(net, seconds):
    """A history in which a mini-batch of a net took so long."""
    row = {
        "net": net.digest,
        "part": "model",
        "version": "v",
        "device": "d",
        "kernel": "loop",
        "batch_seconds": seconds,
        "compile_seconds": 0.0,
        "noted_at": 0,
        "runs": 1,
    }
    return CostHistory(lambda architecture: [row] if architecture == net.architecture else [])
