"""Boosted trees within a backend: LightGBM's text, read strictly into arrays, and computed by NumPy.

Another role may have written the text, so LightGBM itself never sees it here: its reader trusts every index. This reader takes
what mop_udf/training/boosting.py writes (text version v4, of LightGBM 4) and refuses the rest. Each number is checked before a
tree is computed: so an answer reads no other memory, and ends.

The nodes of all trees are numbered together, the leaves after them. All trees are walked down side by side for a block of rows,
a level at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pg_mop.backend.arrays import np

VERSION = "v4"
MOST_BYTES = 32 << 20  # of a text
MOST_LEAVES, MOST_TREES = 1 << 17, 20_000  # of a text
MOST_LEAVES_OF_TREE = 1024
MOST_WIDTH, MOST_FEATURES = 10_000, 1 << 20
MOST_CATEGORY = 1 << 20  # the largest category code
BLOCK_ROWS = 64  # that walk together: their elements stay in the cache of a processor
HEADER = re.compile(
    r"tree\nversion=(?P<version>[^\n]{1,20})\nnum_class=(?P<num_class>\d{1,6})\n"
    r"num_tree_per_iteration=(?P<per_round>\d{1,6})\nlabel_index=\d{1,6}\nmax_feature_idx=(?P<last>\d{1,7})\n"
    r"objective=(?P<objective>[^\n]{1,100})\nfeature_names=[^\n]*\nfeature_infos=[^\n]*\n(?:tree_sizes=[0-9 ]*\n)?\n"
)
TREE = re.compile(r"Tree=(\d{1,7})\n((?:[a-z_]+=[^\n]*\n)+)\n*")
END = "end of trees\n"
WHOLE, NUMBERS = re.compile(r"[-0-9 ]*"), re.compile(r"(?:[-+.e0-9 ]|inf)*")
OBJECTIVE = re.compile(
    r"(regression|regression_l1|quantile)|binary sigmoid:(\d+(?:\.\d+)?)|multiclass num_class:(\d{1,6})"
)
CATEGORICAL, DEFAULT_LEFT = 1, 2  # bits of a decision type
ZERO_MISSING, NAN_MISSING = 1, 2  # the bits above: which value is a missing one; 0: none, NaN is 0
ALMOST_ZERO = 1e-35  # as LightGBM has it
LEFT, RIGHT = np.float32(-np.inf), np.float32(np.nan)  # elements that go there whatever the threshold is


class BadTrees(ValueError):
    """The text is none of LightGBM's that is computed here; the message says why."""


@dataclass
class Trees:
    """A model of boosted trees. `features`: elements of a row; `width`: of its output: 1 for numbers, else the classes.

    The other fields have a value for each node, leaves included, which are their own children. A node goes left where the
    element `feature` of a row is at most `threshold`. What is more than that is in further elements, which are made of a
    row's own before the trees are computed (`_elements`).
    """

    features: int
    width: int
    _link: Callable[[np.ndarray], np.ndarray]  # scores [rows, trees of a round] -> outputs [rows, width]
    _roots: np.ndarray  # of each tree
    _per_round: int
    _levels: int  # of the deepest tree
    _feature: np.ndarray
    _threshold: np.ndarray
    _child: np.ndarray  # right and left of each node in turn
    _value: np.ndarray
    _sets: _Sets | None

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The outputs [rows, width] of inputs [rows, features], as float64: probabilities of classes, or numbers."""
        if inputs.ndim != 2 or inputs.shape[1] != self.features:
            raise BadTrees(f"the trees take {self.features} elements, a row has {inputs.shape[1:]}")
        blocks = [self._scores(inputs[start : start + BLOCK_ROWS]) for start in range(0, len(inputs), BLOCK_ROWS)]
        scores = np.concatenate(blocks) if blocks else np.zeros((0, self._per_round))
        with np.errstate(all="ignore"):
            return self._link(scores)

    @property
    def steps(self) -> int:
        """How many nodes are looked at for a row."""
        return len(self._roots) * self._levels

    def _scores(self, inputs: np.ndarray) -> np.ndarray:
        """The scores [rows, trees of a round]."""
        elements, count, places = self._elements(inputs), len(inputs), self._roots
        if count == 1:  # deciding all nodes at once takes less time than doing it for each level
            goes_left = elements.take(self._feature) <= self._threshold
            after = np.where(goes_left, self._child[1::2], self._child[::2])
            for _ in range(self._levels):
                places = after.take(places)
        else:
            feature, flat = self._feature * count, elements.reshape(-1)
            places, row = np.repeat(places, count), np.tile(np.arange(count), len(places))
            for _ in range(self._levels):
                goes_left = flat.take(feature.take(places) + row) <= self._threshold.take(places)
                places = self._child.take(2 * places + goes_left)
        # (one after the other, as LightGBM does: a row has the same sum alone and among others)
        return self._value.take(places).reshape(-1, self._per_round, count).cumsum(0)[-1].T

    def _elements(self, inputs: np.ndarray) -> np.ndarray:
        """The elements [further ones included, rows] that nodes compare: a row's own in five ways (as they are; 0 for NaN; NaN
        goes left; NaN and 0 go left, or right), and for each set of categories whether its element's code is a member."""
        own = np.ascontiguousarray(inputs.T, "<f4")
        is_nan, is_zero = np.isnan(own), np.abs(own) <= ALMOST_ZERO
        known = np.where(is_nan, np.float32(0), own)
        missing = is_nan | is_zero
        found = [own, known, np.where(is_nan, LEFT, own), np.where(missing, LEFT, own), np.where(missing, RIGHT, own)]
        if self._sets is not None:
            found.append(np.where(self._sets.has(own), LEFT, RIGHT))
        return np.concatenate(found)


@dataclass
class _Sets:
    """The sets of categories of all categorical nodes: the element of each, its first word of `bits` and how many it has."""

    feature: np.ndarray
    first: np.ndarray
    words: np.ndarray
    bits: np.ndarray

    def has(self, own: np.ndarray) -> np.ndarray:
        """Whether the element of each set [sets, rows] is in it. A code that is no number, or below 0, is in none."""
        values = own[self.feature]
        codes = np.trunc(np.where((values > -1) & (values < MOST_CATEGORY), values, -1)).astype("i8")
        word = codes >> 5
        is_known = (codes >= 0) & (word < self.words[:, None])
        bits = self.bits[self.first[:, None] + np.where(is_known, word, 0)]
        return is_known & ((bits >> (codes & 31)) & 1).astype(bool)


def read(text: bytes | memoryview, features: int) -> Trees:
    """The trees of LightGBM's text, for rows of so many elements. Raises BadTrees."""
    if len(text) > MOST_BYTES:
        raise BadTrees(f"the text has {len(text)} bytes, at most {MOST_BYTES}")
    try:
        lines = bytes(text).decode("ascii")
    except UnicodeDecodeError:
        raise BadTrees("the text has other characters than ASCII") from None
    header = HEADER.match(lines)
    if header is None:
        raise BadTrees("the text does not begin as one of LightGBM")
    if header["version"] != VERSION:
        raise BadTrees(f"the text has version {header['version']}, not {VERSION}")
    if int(header["last"]) + 1 != features:
        raise BadTrees(f"the trees take {int(header['last']) + 1} elements, a row has {features}")
    width, per_round, link = _objective(header["objective"], int(header["num_class"]), int(header["per_round"]))
    trees: list[_Tree] = []
    at = header.end()
    while (tree := TREE.match(lines, at)) is not None:
        if int(tree[1]) != len(trees) or len(trees) == MOST_TREES:
            raise BadTrees(f"tree {tree[1]} stands where tree {len(trees)} is expected, of at most {MOST_TREES}")
        trees.append(_Tree(len(trees), tree[2], features))
        at = tree.end()
    if not lines.startswith(END, at):
        raise BadTrees(f"tree {len(trees)} cannot be read")
    if not trees or len(trees) % per_round:
        raise BadTrees(f"there are {len(trees)} trees, {per_round} in each round")
    return _joined(trees, features, width, per_round, link)


def _objective(text: str, classes: int, per_round: int) -> tuple[int, int, Callable[[np.ndarray], np.ndarray]]:
    """(width of the output, trees of a round, the function from scores to outputs)."""
    found = OBJECTIVE.fullmatch(text)
    if found is None:
        raise BadTrees(f'objective "{text}" is not computed here')
    wanted = int(found[3]) if found[3] else 1
    if classes != wanted or per_round != wanted or (found[3] and not 2 <= wanted <= MOST_WIDTH):
        raise BadTrees(f'objective "{text}" does not have {classes} classes and {per_round} trees a round')
    if found[1]:
        return 1, 1, lambda scores: scores
    if found[2]:
        slope = float(found[2])
        return 2, 1, lambda scores: _of_two(1 / (1 + np.exp(-slope * scores)))
    return wanted, wanted, _softmax


def _of_two(chances: np.ndarray) -> np.ndarray:
    return np.concatenate([1 - chances, chances], 1)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


class _Tree:
    """The checked arrays of one tree; a child below 0 is leaf ~child."""

    def __init__(self, number: int, text: str, features: int) -> None:
        self._what, self._lines = f"tree {number}", dict(line.split("=", 1) for line in text.splitlines())
        leaves, sets = self._count("num_leaves", MOST_LEAVES_OF_TREE), self._count("num_cat", MOST_LEAVES_OF_TREE)
        if leaves < 1:
            raise BadTrees(f"{self._what} has no leaves")
        if self._count("is_linear", 1):
            raise BadTrees(f"{self._what} has linear leaves")
        nodes = leaves - 1
        self.feature = self._whole("split_feature", nodes, 0, features - 1)
        self.threshold = self._numbers("threshold", nodes)
        kinds = self._whole("decision_type", nodes, 0, 15)
        self.left = self._whole("left_child", nodes, -leaves, nodes - 1)
        self.right = self._whole("right_child", nodes, -leaves, nodes - 1)
        self.value = self._numbers("leaf_value", leaves)
        if not np.isfinite(self.value).all():
            raise BadTrees(f"leaf_value of {self._what} has no finite numbers")
        self.missing, self.default_left = kinds >> 2, (kinds & DEFAULT_LEFT).astype(bool)
        self.is_set = (kinds & CATEGORICAL).astype(bool)
        if (self.missing > NAN_MISSING).any():
            raise BadTrees(f"{self._what} has an unknown decision type")
        self._check_children(nodes)
        self._read_sets(sets)

    def _check_children(self, nodes: int) -> None:
        """Each node but the first, and each leaf, is the child of one node that stands before it."""
        children = np.concatenate([self.left, self.right])
        parents = np.concatenate([np.arange(nodes)] * 2)
        if (
            np.sort(children) != np.concatenate([np.arange(-nodes - 1, 0), np.arange(1, nodes)])[: 2 * nodes]
        ).any() or ((children >= 0) & (children <= parents)).any():
            raise BadTrees(f"the children of {self._what} make no tree")

    def _read_sets(self, count: int) -> None:
        """`first`, `words`: of the set of each categorical node; `bits`: of all sets."""
        self.first = self.words = self.bits = np.zeros(0, "i8")
        if not count:
            if self.is_set.any():
                raise BadTrees(f"{self._what} has a categorical decision without categories")
            return
        ends = self._whole("cat_boundaries", count + 1, 0, count * (MOST_CATEGORY >> 5))
        if ends[0] or (np.diff(ends) < 1).any():
            raise BadTrees(f"the categories of {self._what} have no order")
        self.bits = self._whole("cat_threshold", int(ends[-1]), 0, (1 << 32) - 1)
        chosen = self.threshold[self.is_set]
        if ((chosen < 0) | (chosen >= count) | (chosen != np.trunc(chosen))).any():
            raise BadTrees(f"{self._what} has a categorical decision without categories")
        places = chosen.astype("i8")
        self.first, self.words = ends[places], np.diff(ends)[places]

    def _line(self, name: str) -> str:
        if name not in self._lines:
            raise BadTrees(f"{self._what} has no {name}")
        return self._lines[name]

    def _count(self, name: str, most: int) -> int:
        text = self._line(name)
        if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= most):
            raise BadTrees(f"{name} of {self._what} is no number up to {most}")
        return int(text)

    def _whole(self, name: str, count: int, least: int, most: int) -> np.ndarray:
        numbers = self._parsed(name, count, WHOLE, "i8")
        if count and (numbers.min() < least or numbers.max() > most):
            raise BadTrees(f"{name} of {self._what} has a number that is not from {least} to {most}")
        return numbers

    def _numbers(self, name: str, count: int) -> np.ndarray:
        return self._parsed(name, count, NUMBERS, "f8")  # (an infinite threshold parts NaN from numbers)

    def _parsed(self, name: str, count: int, form: re.Pattern[str], dtype: str) -> np.ndarray:
        text = self._line(name) if count else ""
        words = text.split(" ") if form.fullmatch(text) else []
        if len(words) != count and (count or text):
            raise BadTrees(f"{name} of {self._what} has not {count} numbers")
        try:
            return np.array(words[:count], dtype=dtype) if count else np.zeros(0, dtype)
        except (ValueError, OverflowError):
            raise BadTrees(f"{name} of {self._what} has a text that is no number") from None


def _joined(
    trees: list[_Tree], features: int, width: int, per_round: int, link: Callable[[np.ndarray], np.ndarray]
) -> Trees:
    """The arrays of all trees."""
    nodes, leaves = [len(tree.feature) for tree in trees], [len(tree.value) for tree in trees]
    if sum(leaves) > MOST_LEAVES:
        raise BadTrees(f"there are {sum(leaves)} leaves, at most {MOST_LEAVES}")
    total = sum(nodes)
    first_node = np.cumsum([0, *nodes])[:-1]
    first_leaf = total + np.cumsum([0, *leaves])[:-1]
    own = np.arange(total, total + sum(leaves))

    def together(name: str) -> np.ndarray:
        return np.concatenate([getattr(tree, name) for tree in trees])

    def children(name: str) -> np.ndarray:
        child, by = together(name), np.repeat(np.arange(len(trees)), nodes)
        placed = np.where(child < 0, first_leaf[by] + ~child, first_node[by] + child)
        return np.concatenate([placed, own])

    left, right = children("left"), children("right")
    roots = np.where(np.array(nodes) > 0, first_node, first_leaf)
    levels, frontier = 0, roots[roots < total]
    while len(frontier):
        levels += 1
        frontier = np.concatenate([left[frontier], right[frontier]])
        frontier = frontier[frontier < total]
    missing, is_set, none = together("missing"), together("is_set"), np.zeros(sum(leaves), "i8")
    # the place among the ways of `Trees._elements`
    way = np.where(missing == NAN_MISSING, 0, np.where(missing == ZERO_MISSING, 4, 1))
    way -= together("default_left") & (missing == ZERO_MISSING)
    way += 2 * (together("default_left") & (missing == NAN_MISSING))
    feature = together("feature")
    places = np.where(is_set, 5 * features + np.cumsum(is_set) - 1, way * features + feature)
    sets = None
    if is_set.any():
        words, counts = [len(tree.bits) for tree in trees], [len(tree.first) for tree in trees]
        first = together("first") + np.repeat(np.cumsum([0, *words])[:-1], counts)
        sets = _Sets(feature[is_set], first, together("words"), together("bits"))
    return Trees(
        features,
        width,
        link,
        roots,
        per_round,
        levels,
        np.concatenate([places, none]),
        np.concatenate([_rounded_down(np.where(is_set, 0, together("threshold"))), none]).astype("f4"),
        np.stack([right, left], 1).reshape(-1),
        np.concatenate([np.zeros(total), together("value")]),
        sets,
    )


def _rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """The largest float32 that is not above each threshold: a float32 is not above both or neither."""
    with np.errstate(over="ignore"):
        rounded = thresholds.astype("f4")
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
