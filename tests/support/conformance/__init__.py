"""Classes of tests for the implementations of an interface: procedures, schedulers, columns, features, samplers, kernels."""

from support.conformance.columns import ColumnConformance, FeatureConformance
from support.conformance.kernels import KernelConformance
from support.conformance.procedures import ProcedureConformance
from support.conformance.samplers import SamplerConformance
from support.conformance.schedulers import SchedulerConformance

__all__ = [
    "ColumnConformance",
    "FeatureConformance",
    "KernelConformance",
    "ProcedureConformance",
    "SamplerConformance",
    "SchedulerConformance",
]
