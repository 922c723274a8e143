"""Images: PNG or JPEG files in columns of type bytea, decoded in the trainer and resized to one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal, written
from pg_mop.columns.base import Column, Request, SourceColumn

if TYPE_CHECKING:
    import numpy

SIZE, CHANNELS = 64, 3  # where the user does not say it
MOST_BYTES = 64 << 20  # of the files that one message to the trainer holds
MAGIC = (r"\x89504e47", r"\xffd8ff")  # the first bytes of PNG and JPEG files


@dataclass
class Image(Column):
    """Parameters: `shape` ([height, width, 1 or 3]), `bytes` (of a file, on average), `sql_type`, `nulls`, `rows`.

    Elements are from 0 to 1. NULL is a black image. A trainer decodes: `decoded_by` names it before `encode`.
    """

    type_name = kind_name = "image"
    takes = "bytea"
    options = {"size": int, "channels": int}
    flat = False

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Image:
        return cls.of(source, {})

    @classmethod
    def of_table(cls, source: SourceColumn, options: Mapping[str, Any]) -> Image | None:
        return cls.of(source, options) if "kind" in options or cls.is_in(source) else None

    @classmethod
    def of(cls, source: SourceColumn, options: Mapping[str, Any]) -> Image:
        """The fitted column. Raises MopError for channels that no image has."""
        size, channels = int(options.get("size", SIZE)), int(options.get("channels", CHANNELS))
        if channels not in (1, 3):
            raise MopError(
                f'transform of column "{source.name}": channels must be 1 (grey) or 3 (colour), not {channels}'
            )
        quoted = quote_identifier(source.name)
        row = source.db.one(
            f"SELECT count(*) AS rows, count({quoted}) AS known, avg(octet_length({quoted}))::float8 AS bytes "
            f"FROM {source.table}"
        )
        assert row is not None
        if not row["known"]:
            raise MopError(f'column "{source.name}" is NULL in all rows', sqlstate="22004")
        parameters = {
            "shape": [size, size, channels],
            "bytes": int(row["bytes"]) + 1,
            "sql_type": "bytea",
            "rows": row["rows"],
            "nulls": row["rows"] - row["known"],
        }
        return cls(source.name, parameters)

    @classmethod
    def is_in(cls, source: SourceColumn) -> bool:
        """Whether the first value of a bytea column is an image."""
        quoted = quote_identifier(source.name)
        tests = " OR ".join(
            f"substring({quoted} FROM 1 FOR {len(m) // 2 - 1}) = {quote_literal(m)}::bytea" for m in MAGIC
        )
        return bool(source.db.value(f"SELECT {tests} FROM {source.table} WHERE {quoted} IS NOT NULL LIMIT 1"))

    @property
    def wire_bytes(self) -> int:
        return max(1, int(self.parameters["bytes"]))

    @property
    def needs_trainer(self) -> bool:
        return True

    def wire_sql(self, value: str) -> str:
        return value

    def decoded_by(self, trainer: Any) -> None:
        """Have `trainer`, a Trainer or a KerasNet, decode from now on."""
        self._trainer = trainer

    def encode(self, values: list[Any]) -> numpy.ndarray:
        from pg_mop.columns.binary import np

        files = [value or b"" for value in values]
        made = np.empty((len(files), *self.shape), "<f4")
        start = 0
        while start < len(files):
            end, size = start + 1, len(files[start])
            while end < len(files) and size + len(files[end]) <= MOST_BYTES:
                size, end = size + len(files[end]), end + 1
            own = files[start:end]
            header, payloads = self._trainer.request(
                {"op": "pictures", "lengths": [len(file) for file in own], "shape": self.shape}, b"".join(own)
            )
            if "broken" in header:
                raise MopError(
                    f'column "{self.name}" has a value that is no PNG or JPEG image',
                    detail=header["broken"],
                    hint=f"SELECT * FROM ... WHERE md5({written(self.name)}) = {quote_literal(header['md5'])}; finds it.",
                    sqlstate="22000",
                )
            made[start:end] = np.frombuffer(payloads[0], np.uint8).reshape(-1, *self.shape) / np.float32(255)
            start = end
        return made

    def to_keras(self) -> dict[str, Any]:
        return {"class_name": "Rescaling", "config": {"scale": 1 / 255}}
