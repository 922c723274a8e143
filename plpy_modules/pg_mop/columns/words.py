"""Texts as sequences of word numbers, as Keras' TextVectorization makes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.columns.base import Column, Request, SourceColumn
from pg_mop.columns.features.base import raw_sql
from pg_mop.plan import nets

if TYPE_CHECKING:
    import numpy

MAX_TOKENS = 10_000  # rows of the embedding table
MAX_LENGTH = 128  # words of a text, unless the user says it
PUNCTUATION = re.compile(r"[!\"#$%&()\*\+,\-\./:;<=>?@\[\\\]^_`{|}~']")  # TextVectorization strips these
PADDING, UNKNOWN = 0, 1  # the first numbers
DIMENSIONS = 32  # of the embedding


@dataclass
class Words(Column):
    """Parameters: `vocabulary` (the most frequent words first; numbers 2, 3, ...), `shape` ([words of a text]), `column`,
    `path`, `sql_type`, `nulls`, `rows`.

    Lower case, without punctuation, split at white space. Short texts are padded with 0, long ones cut, and unknown words
    are 1. NULL is an empty text, and an empty text is one unknown word.
    """

    type_name = "words"
    flat = False
    raw_type = "text"

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Words:
        raise NotImplementedError("texts are fitted with the other features (columns/fitting.py)")

    @classmethod
    def of(cls, name: str, counts: Counter[str], lengths: Counter[int], options: dict[str, Any], **more: Any) -> Words:
        """The column, from the words of the training rows and from the numbers of words of their texts."""
        most = int(options.get("max_tokens", MAX_TOKENS)) - 2
        vocabulary = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]
        length = int(options.get("length") or min(MAX_LENGTH, max(1, _quantile(lengths, 0.98))))
        return cls(name, {"vocabulary": vocabulary, "shape": [length], **more})

    @property
    def tokens(self) -> int:
        """The rows of an embedding table."""
        return len(self.parameters["vocabulary"]) + 2

    @property
    def sources(self) -> list[str]:
        return [self.parameters["column"]]

    def raw_sql(self) -> str:
        return f"{raw_sql(self.parameters['column'], self.parameters.get('path'))}::text"

    def wire_sql(self, value: str) -> str:
        return value

    @property
    def wire_bytes(self) -> int:
        return 10 * self.shape[0] + 20

    def encode(self, values: list[Any]) -> numpy.ndarray:
        from pg_mop.columns.binary import np

        if not hasattr(self, "_numbers"):
            self._numbers = {word: number for number, word in enumerate(self.parameters["vocabulary"], 2)}
        length, numbers = self.shape[0], self._numbers
        packed = np.zeros((len(values), length), "<f4")
        for row, text in enumerate(values):
            found = [numbers.get(word, UNKNOWN) for word in words(text)[:length]]
            packed[row, : len(found)] = found
        # (the mean over the words of a text without words would be NaN in a net with a mask)
        np.maximum(packed[:, 0], UNKNOWN, out=packed[:, 0])
        return packed

    def difference(self, other: Column) -> str | None:
        if not isinstance(other, Words) or self.parameters["vocabulary"] == other.parameters["vocabulary"]:
            return None
        return f'for "{self.name}" other words than those of training'

    def described(self) -> str:
        return f"{self.tokens} words"

    def net_input(self) -> nets.Input:
        embedding = {"input_dim": self.tokens, "output_dim": DIMENSIONS, "mask_zero": True}
        return nets.Input(self.name, tuple(self.shape), [("Embedding", embedding), ("GlobalAveragePooling1D", {})])

    def raw_inputs(self) -> list[dict[str, Any]]:
        return [
            {"kind": "words", "name": self.name, "vocabulary": self.parameters["vocabulary"], "length": self.shape[0]}
        ]


def words(text: str | None) -> list[str]:
    """The words of a text.

    >>> words("It's a Test, again: a-b")
    ['its', 'a', 'test', 'again', 'ab']
    """
    return PUNCTUATION.sub("", text.lower()).split() if text else []


def count(texts: Iterable[str | None], counts: Counter[str], lengths: Counter[int]) -> None:
    """Add the words of texts to the counts."""
    for text in texts:
        found = words(text)
        counts.update(found)
        lengths[len(found)] += 1


def _quantile(lengths: Counter[int], share: float) -> int:
    total, seen = sum(lengths.values()), 0
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= share * total:
            return length
    return 1
