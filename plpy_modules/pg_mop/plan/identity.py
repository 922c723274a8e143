"""Stage identities: chains of digests.

Two stages of equal identity have equal results, given the visit order. The identity of a root covers everything that
decides how training starts. The identity of a stage covers its parent's identity and the values of all parameters in
its iteration. So the planner never compares parameter functions.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Identity = str  # 64 hexadecimal digits, with a suffix for a stage that is not shared

_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def root(facts: Mapping[str, Any]) -> Identity:
    """The identity of a start of training.

    `facts`: values that JSON can represent; the order of keys does not matter. Raises TypeError or ValueError for any
    other value, also for not-a-number, because it does not equal itself.
    """
    return _digest(_ENCODE(facts))


def child(parent: Identity, parameters: tuple[str, ...]) -> Identity:
    """The identity of one more iteration under `parameters` (texts) after the stage `parent`."""
    return _digest(parent + _ENCODE(parameters))


def _digest(text: str) -> Identity:
    return hashlib.sha256(text.encode()).hexdigest()
