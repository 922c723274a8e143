"""Features: what the columns of ordinary tables become within packed columns.

To add a kind of feature, write a subclass of :class:`~pg_mop.columns.features.base.Feature` in a module of its own, add the
class to FEATURES, and let `choice.py` choose it.
"""

from __future__ import annotations

from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.columns.features.base import Feature, Source, Statistics
from pg_mop.columns.features.category import CodedCategory, OneHotCategory
from pg_mop.columns.features.moment import Moment
from pg_mop.columns.features.number import Boolean, Number

FEATURES: list[type[Feature]] = [Number, Boolean, OneHotCategory, CodedCategory, Moment]

__all__ = ["FEATURES", "Feature", "Number", "Source", "Statistics", "feature_from_json"]


def feature_from_json(data: dict[str, Any]) -> Feature:
    """The feature that `Feature.to_json` describes. Raises MopError for an unknown type."""
    for feature in FEATURES:
        if feature.type_name == data["type"]:
            return feature(data["name"], data["parameters"])
    raise MopError(f'there is no type of features "{data["type"]}"')
