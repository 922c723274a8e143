"""What makes two stages the same: digest chains.

Equal identity, equal result (given the visit order): a root's is of everything that decides how training starts, a
stage's of its parent's and of the values that all parameters have in its iteration. So nobody compares functions.
"""

import hashlib
import json

_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def root(facts):
    """The identity of a start of training (64 hexadecimal digits).

    `facts`: a dict of what JSON can say, whatever the order of its keys. TypeError or ValueError for anything else,
    not-a-number included: it is not equal to itself.
    """
    return _digest(_ENCODE(facts))


def child(parent, parameters):
    """The identity of one more iteration under `parameters` (a tuple of texts) after `parent` (an identity)."""
    return _digest(parent + _ENCODE(parameters))


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
