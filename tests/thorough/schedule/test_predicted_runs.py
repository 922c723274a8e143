"""Predictions of large runs and searches: what they take does not grow with the square."""

import time

from pg_mop.explain.prediction import predict
from pg_mop.plan.estimates import CommandCosts, Estimates, FixedCosts
from pg_mop.search import create, outlook
from pg_mop.search.space import Space
from support.plans import configuration, planned, workload

FREE = CommandCosts(0.0, 0.0, 0.0, 0.0)
FIXED = FixedCosts(
    start=2.0, unit=0.0, ready=0.0, compile=0.0, end=0.5, evaluation=0.0, training=FREE, evaluating=FREE, slowdown=1.0
)
CHAINS = {"chain_seconds": 0.5}
SPACE = (
    "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [1e-4, 0.1, 'log']}]}",
    "{'batch_size': [8, 16], 'epochs': [1]}",
)


def test_a_thousand_configurations_are_predicted_in_seconds():
    configurations = [configuration(key, key / 1e6) for key in range(1, 1001)]
    planner = planned(workload(segments=8, iterations=10, metrics=(10,), options=CHAINS), configurations)
    began = time.process_time()  # (0.2 s on a quiet machine; the bound finds only what grows with the square)
    found = predict(planner, configurations, {}, Estimates(planner, fixed=FIXED, sessions=8))
    assert found.units == 80_000 and time.process_time() - began < 10


def test_ten_thousand_trials_are_driven_in_seconds():
    began = time.process_time()
    procedure = create("asha", Space.of_texts([1], *SPACE), 3, "min", {"trials": 10_000, "iterations": 81})
    trials = outlook.drive(procedure, "random").trials
    assert len(trials) == 10_000 and time.process_time() - began < 30
