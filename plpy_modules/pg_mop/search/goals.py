"""Which metric a user names, and whether larger or smaller values of it are better."""

import re

MORE = re.compile(
    r"acc|auc|precision|recall|f1|f_beta|fbeta|score|true_|true(positives|negatives)|cosine|correlation|"
    r"concordance|top_?k|top_\d",
    re.I,
)
LESS = re.compile(
    r"loss|error|crossentropy|^(mae|mse|mape|msle|ce|bce|kld?)$|divergence|hinge|poisson|cosh|false_|"
    r"false(positives|negatives)",
    re.I,
)


def goal(metric: str) -> str | None:
    """'max' or 'min' for the name of a Keras metric; None if the name does not tell."""
    if LESS.search(metric):
        return "min"
    return "max" if MORE.search(metric) else None


def parts(text: str) -> tuple[str, str | None, str]:
    """(name, dataset or None, 'min', 'max' or '') of a user's text: 'accuracy', 'validation_loss', 'mine max'."""
    name, _, direction = text.strip().partition(" ")
    for dataset in ("validation", "training"):
        if name.startswith(dataset + "_"):
            return name[len(dataset) + 1 :], dataset, direction.strip().lower()
    return name, None, direction.strip().lower()
