"""The fit parameter dropout: a copy of an architecture with other rates in its dropout layers.

Standard library only.
"""

from typing import Any

from mop_udf.architecture.architecture import ArchitectureError
from mop_udf.params.sequences import Sequence

# Layers whose `rate` the fit parameter dropout sets. NO_RATE stands for a rate of 0 until the model is built: with 0,
# Keras would give the layer no random state, but the layer needs that state once its rate changes.
DROPOUTS = frozenset("AlphaDropout Dropout GaussianDropout SpatialDropout1D SpatialDropout2D SpatialDropout3D".split())
NO_RATE = 0.5


def with_dropout(architecture: dict[str, Any], dropout: float | dict[str, float]) -> dict[str, Any]:
    """A copy of an architecture (as `check` gives it) with other rates in its dropout layers.

    `dropout`: one rate for all of them, or {layer name: rate}. A rate of 0 is written as NO_RATE. Raises
    ArchitectureError where the architecture has no such layer.
    """
    found = set()

    def copy(node: Any) -> Any:
        if isinstance(node, list):
            return list(map(copy, node))
        if not isinstance(node, dict):
            return node
        made = {key: copy(value) for key, value in node.items()}
        if made.get("class_name") in DROPOUTS and isinstance(made.get("config"), dict):
            name = str(made["config"].get("name"))
            found.add(name)
            rate = dropout.get(name) if isinstance(dropout, dict) else dropout
            if rate is not None:
                made["config"]["rate"] = rate or NO_RATE
        return made

    made = copy(architecture)
    if not found:
        raise ArchitectureError(f"dropout is given, but the architecture has no layer of {', '.join(sorted(DROPOUTS))}")
    unknown = [name for name in dropout if name not in found] if isinstance(dropout, dict) else []
    if unknown:
        raise ArchitectureError(
            f"the architecture has no dropout layer {str(unknown[0])[:100]!r}, only {', '.join(sorted(found))[:200]}"
        )
    return made


def check_dropout(architecture: dict[str, Any], dropout: Any) -> None:
    """Raise ArchitectureError where the fit parameter `dropout` names a layer that an architecture does not have.

    `architecture` as `check` gives it; `dropout` as parsed, possibly a Sequence or None.
    """
    if dropout is not None:
        with_dropout(architecture, dropout.at(0) if isinstance(dropout, Sequence) else dropout)
