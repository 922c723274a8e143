"""Pictures on the client's machine: folders of them as rows with arrays of pixels, and files that a column names."""

import os
import pathlib
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy
import pandas

from pg_mop_client.errors import ClientError, needed

CHUNK_PIXELS = 4_000_000  # approximate number of values in memory at a time
MODES = {"RGB": 3, "RGBA": 4, "L": 1}
OF_PARTS = ("MPO", "PSD")  # in these formats the first frame is the picture; the others are previews or layers
DEEP = re.compile(r"(L|LA|RGB|RGBA|RGBX|CMYK);(1[0-6]|32|64)[A-Z]*")  # Pillow's names of pixels above 8 bits a channel

MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # the first bytes of PNG and JPEG files
MOST_FILE = 64 << 20  # bytes of a file that a column names


def check_files(column: str, values: Iterable[Any]) -> None:
    """Raises ClientError unless each value is missing or the path of a PNG or JPEG file of at most MOST_FILE bytes."""
    for row, value in enumerate(values):
        if not _is_missing(value):
            _first_bytes(column, row, value, len(MAGIC[0]))


def read_file(column: str, row: int, value: Any) -> bytes:
    """The bytes of the PNG or JPEG file that a column names in a row. Raises ClientError."""
    return _first_bytes(column, row, value, MOST_FILE)


def _is_missing(value: Any) -> bool:
    return pandas.api.types.is_scalar(value) and bool(pandas.isna(value))


def _first_bytes(column: str, row: int, value: Any, most: int) -> bytes:
    """At most so many bytes of an image file. Raises ClientError that names the row (from 0) and the path."""
    where = f"row {row} of column {column!r}"
    if not isinstance(value, (str, os.PathLike)):
        raise ClientError(
            f"{where} is {type(value).__name__}, not the path of an image", hint="Columns of bytes need no images=..."
        )
    path = pathlib.Path(value).expanduser()
    try:
        # (a pipe or a device would have no end: it is neither opened nor waited for)
        mode = path.stat()
        if not stat.S_ISREG(mode.st_mode):
            raise ClientError(f"{where}: {str(path)!r} is no file")
        if mode.st_size > MOST_FILE:
            raise ClientError(f"{where}: {str(path)!r} has {mode.st_size:,} bytes, more than {MOST_FILE:,}")
        with open(path, "rb") as file:
            found = file.read(min(most, MOST_FILE))
    except FileNotFoundError:
        raise ClientError(
            f"{where}: there is no file {str(path)!r}", hint=f"The current directory is {os.getcwd()!r}."
        ) from None
    except (OSError, ValueError) as error:
        raise ClientError(
            f"{where}: {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not found.startswith(MAGIC):
        raise ClientError(
            f"{where}: {str(path)!r} is no PNG or JPEG file" if found else f"{where}: {str(path)!r} is empty",
            hint="PIL.Image.open(path).save('picture.png') converts other formats.",
        )
    return found


def chunks(
    folder: str | os.PathLike[str], size: Sequence[int] | None = None, mode: str = "RGB"
) -> Iterator[pandas.DataFrame]:
    """The pictures below a folder as DataFrames of some rows each, in the order of their paths.

    The columns are `pixels`, an array (height, width, channels) of 0 to 255, and, if `folder` has one folder for each
    class, `label`, the name of the picture's folder. The index is the path relative to `folder`.

    `size`: resize all pictures to (height, width); None: all pictures have the same size already. `mode`: 'RGB',
    'RGBA' or 'L' (grey). Hidden files are ignored. Raises ClientError for a bad argument, for a file that is not a
    picture, and for a picture with several frames or with more than 8 bits a channel.
    """
    image = needed("PIL.Image", "images")
    if mode not in MODES:
        raise ClientError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if size is not None and not (
        isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
    ):
        raise ClientError(f"size must be (height, width), not {size!r}")
    root = pathlib.Path(folder)
    paths = sorted(
        path
        for path in root.rglob("*")
        if (path.is_file() or path.is_symlink())
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    names = [path.relative_to(root).parts for path in paths]
    for path, parts in zip(paths, names):
        if not path.is_file():
            raise ClientError(f"{str(path)!r} is a link to a folder, or to nothing")
        if any("\udc80" <= character <= "\udcff" for part in parts for character in part):
            raise ClientError(f"the name {str(path)!r} is not UTF-8")
    if not paths:
        raise ClientError(f"there are no pictures in {str(root)!r}")
    labelled = [len(parts) > 1 for parts in names]
    if any(labelled) != all(labelled):
        raise ClientError(
            f"{str(paths[labelled.index(False)])!r} is in no folder of a class",
            hint="Use one folder for each class, or no folders.",
        )
    return _read(image, paths, names, size, mode)


def _read(
    image: Any, paths: list[pathlib.Path], names: list[tuple[str, ...]], size: Sequence[int] | None, mode: str
) -> Iterator[pandas.DataFrame]:
    rows: list[tuple[Any, ...]] = []
    wanted = tuple(size) if size is not None else None
    for path, parts in zip(paths, names):
        try:
            with image.open(path) as opened:
                if _is_deep(opened, path):
                    raise ClientError(
                        f"{str(path)!r} has more than 8 bits a channel, which would be cut off",
                        hint="pack((x, y), ...) takes arrays of any numbers.",
                    )
                if (frames := getattr(opened, "n_frames", 1)) > 1 and opened.format not in OF_PARTS:
                    raise ClientError(
                        f"{str(path)!r} has {frames} frames, but a row holds one frame",
                        hint="A file for each frame (PIL.ImageSequence), or pack((x, y), ...)",
                    )
                picture = needed("PIL.ImageOps", "images").exif_transpose(opened).convert(mode)
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise ClientError(f"{str(path)!r} cannot be read as a picture: {error}") from None
        if size is not None:
            picture = picture.resize(tuple(size)[::-1], image.Resampling.BILINEAR)
        found = picture.size[::-1]
        wanted = wanted or found
        if found != wanted:
            raise ClientError(
                f"{str(path)!r} has {found[0]} x {found[1]} pixels, the pictures before it {wanted[0]} x {wanted[1]}",
                hint=f"size=({wanted[0]}, {wanted[1]})",
            )
        pixels = numpy.asarray(picture).reshape(*wanted, MODES[mode])
        rows.append(("/".join(parts), pixels, parts[0]) if len(parts) > 1 else ("/".join(parts), pixels))
        if len(rows) * pixels.size >= CHUNK_PIXELS:
            yield _frame(rows)
            rows = []
    if rows:
        yield _frame(rows)


def _is_deep(opened: Any, path: pathlib.Path) -> bool:
    """True if a channel has more than 8 bits. Pillow would cut off the other bits, and reports only some formats."""
    if opened.mode.startswith("I") or opened.mode == "F":
        return True
    if opened.format == "TIFF":
        return max(opened.tag_v2.get(258, (1,))) > 8
    if opened.format in ("JPEG2000", "AVIF"):
        with open(path, "rb") as file:
            head = file.read(1 << 16)
        if opened.format == "AVIF":
            at = head.find(b"av1C")
            return at >= 0 and bool(head[at + 6] & 0x40)
        at = head.find(b"\xff\x4f\xff\x51") + 40  # the marker SIZ: the number of channels, and 3 bytes for each
        return any(
            (size & 0x7F) > 7 for size in head[at + 2 : at + 2 + 3 * int.from_bytes(head[at : at + 2], "big") : 3]
        )
    for decoder, _, _, given in opened.tile:
        given = given if isinstance(given, tuple) else (given,)
        if (
            isinstance(given[0], str)
            and DEEP.fullmatch(given[0])
            or decoder == "SGI16"
            or decoder == "sgi_rle"
            and given[-1] == 2
            or decoder in ("ppm", "ppm_plain")
            and isinstance(given[-1], int)
            and given[-1] > 255
        ):
            return True
    return False


def _frame(rows: list[tuple[Any, ...]]) -> pandas.DataFrame:
    paths, *columns = zip(*rows)
    return pandas.DataFrame(
        {name: list(values) for name, values in zip(("pixels", "label"), columns)}, index=list(paths)
    )
