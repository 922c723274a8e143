"""The training unit, and the words that the schedulers use for its parts."""

from collections.abc import Hashable
from dataclasses import dataclass

from pg_mop.plan.stages import Iteration, StageNumber

SegmentNumber = int  # key of a horizontal part of a packed table
Dataset = str  # 'training' | 'validation'
Kind = str  # 'train' | 'evaluate'
DatasetSegment = tuple[Dataset, SegmentNumber]
Worker = int  # number of a worker session
Server = str | None  # name of the database server that holds a segment; None: the only one
CompiledModel = Hashable  # equal for stages that share a compiled model


@dataclass(frozen=True, order=True)
class Unit:
    """One stage on one segment once: trained, or evaluated."""

    iteration: Iteration
    stage: StageNumber
    kind: Kind
    dataset: Dataset
    segment: SegmentNumber
