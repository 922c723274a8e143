"""What the interfaces promise, as classes of tests: one for procedures, schedulers, columns, features, samplers and kernels."""

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
