"""Which metric somebody means, and whether more of it is better, or less."""

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


def goal(metric):
    """'max' or 'min' for a metric of Keras; None for one that its name does not tell of."""
    if LESS.search(metric):
        return "min"
    return "max" if MORE.search(metric) else None


def parts(text):
    """(name, dataset or None, 'min', 'max' or '') of what people write: 'accuracy', 'validation_loss', 'mine max'."""
    name, _, direction = text.strip().partition(" ")
    for dataset in ("validation", "training"):
        if name.startswith(dataset + "_"):
            return name[len(dataset) + 1 :], dataset, direction.strip().lower()
    return name, None, direction.strip().lower()
