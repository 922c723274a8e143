"""PNG and JPEG pictures decoded by Pillow (make install WITH=images). Runs in the trainer, never in a backend."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mop_udf.training.models import ConfigurationError

FORMATS = ("PNG", "JPEG")
MOST_PIXELS = 100_000_000  # of one picture: decoding takes up to four bytes a pixel


class PictureError(ValueError):
    """A file cannot be decoded. `md5`: of its bytes."""

    def __init__(self, message: str, file: bytes) -> None:
        super().__init__(message)
        self.md5 = hashlib.md5(file, usedforsecurity=False).hexdigest()


def answer(header: dict[str, Any], payloads: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
    """The answer to a request `pictures` {lengths, shape}, files: the pictures, or what is wrong with one of them."""
    try:
        made = decode(bytes(payloads[0]), header["lengths"], header["shape"])
    except PictureError as error:
        return {"broken": str(error), "md5": error.md5}, ()
    return {}, [made.reshape(-1)]


def decode(data: bytes, lengths: list[int], shape: list[int]) -> np.ndarray:
    """Pictures -> uint8 [pictures, height, width, channels], resized; a picture without bytes is black.

    `data`: the files one after the other, of `lengths` bytes; `shape`: [height, width, 1 or 3]. Raises ConfigurationError
    where Pillow is not installed, PictureError for a file that is no picture.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ConfigurationError("pictures need Pillow on the server: make install WITH=images") from None
    height, width, channels = shape
    made = np.zeros((len(lengths), height, width, channels), np.uint8)
    start = 0
    for i, length in enumerate(lengths):
        own, start = data[start : start + length], start + length
        if not length:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # (Pillow warns of large pictures; those beyond MOST_PIXELS are refused)
                picture: Any = Image.open(io.BytesIO(own), formats=FORMATS)
                if picture.width * picture.height > MOST_PIXELS:
                    raise ValueError(f"it has {picture.width} x {picture.height} pixels, more than {MOST_PIXELS:,}")
                picture.draft("RGB", (2 * width, 2 * height))  # (a JPEG is decoded at a smaller size, if one suffices)
                picture = ImageOps.exif_transpose(picture).convert("RGB" if channels == 3 else "L")
                made[i] = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR)).reshape(made[i].shape)
        except Exception as error:  # (a broken file raises errors of many classes)
            if isinstance(error, MemoryError):
                raise
            raise PictureError(f"{type(error).__name__}: {str(error)[:200]}", own) from None
    return made
