"""Folders of pictures as rows: an array of pixels each, and the folder's name as the label."""

import pathlib
import re

import numpy
import pandas

from pg_mop_client.errors import ClientError, needed

CHUNK_PIXELS = 4_000_000  # numbers in memory at a time, about
MODES = {"RGB": 3, "RGBA": 4, "L": 1}
OF_PARTS = ("MPO", "PSD")  # formats whose first frame is the picture, and the others are previews or layers of it
DEEP = re.compile(r"(L|LA|RGB|RGBA|RGBX|CMYK);(1[0-6]|32|64)[A-Z]*")  # how Pillow calls such pixels in a file


def chunks(folder, size=None, mode="RGB"):
    """The pictures below a folder as DataFrames of some rows each, in the order of their paths: `pixels`, an array
    (height, width, channels) of 0 to 255; `label`, the name of the folder within `folder` that it is in, where there
    are such folders; by the path within `folder` as index.

    `size`: (height, width), to which they are resized; None: all are of one size. `mode`: 'RGB', 'RGBA' or 'L' (grey).
    Hidden files are passed over. Raises ClientError, also for a file that is no picture, or is more than an array of
    pixels has room for.
    """
    image = needed("PIL.Image", "images")
    if mode not in MODES:
        raise ClientError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if size is not None and not (
        isinstance(size, (tuple, list)) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
    ):
        raise ClientError(f"size must be (height, width), not {size!r}")
    folder = pathlib.Path(folder)
    paths = sorted(
        path
        for path in folder.rglob("*")
        if (path.is_file() or path.is_symlink())
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    names = [path.relative_to(folder).parts for path in paths]
    for path, parts in zip(paths, names):
        if not path.is_file():
            raise ClientError(f"{str(path)!r} is a link to a folder, or to nothing")
        if any("\udc80" <= character <= "\udcff" for part in parts for character in part):
            raise ClientError(f"the name {str(path)!r} is not UTF-8")
    if not paths:
        raise ClientError(f"there are no pictures in {str(folder)!r}")
    labelled = [len(parts) > 1 for parts in names]
    if any(labelled) != all(labelled):
        raise ClientError(
            f"{str(paths[labelled.index(False)])!r} is in no folder of a class",
            hint="A folder for each class, or none at all.",
        )
    return _read(image, paths, names, size, mode)


def _read(image, paths, names, size, mode):
    rows, wanted = [], size and tuple(size)
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
                        f"{str(path)!r} has {frames} frames, of which a row has room for one",
                        hint="A file for each frame (PIL.ImageSequence), or pack((x, y), ...)",
                    )
                picture = needed("PIL.ImageOps", "images").exif_transpose(opened).convert(mode)
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise ClientError(f"{str(path)!r} cannot be read as a picture: {error}") from None
        if size is not None:
            picture = picture.resize(wanted[::-1], image.Resampling.BILINEAR)
        found = picture.size[::-1]
        wanted = wanted or found
        if found != wanted:
            raise ClientError(
                f"{str(path)!r} has {found[0]} x {found[1]} pixels, those before it {wanted[0]} x {wanted[1]}",
                hint=f"size=({wanted[0]}, {wanted[1]})",
            )
        pixels = numpy.asarray(picture).reshape(*wanted, MODES[mode])
        rows.append(("/".join(parts), pixels, parts[0]) if len(parts) > 1 else ("/".join(parts), pixels))
        if len(rows) * pixels.size >= CHUNK_PIXELS:
            yield _frame(rows)
            rows = []
    if rows:
        yield _frame(rows)


def _is_deep(opened, path):
    """True where a channel has more than 8 bits: Pillow would cut off the rest, and says so of some formats alone."""
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
        at = head.find(b"\xff\x4f\xff\x51") + 40  # the marker SIZ: how many channels, and 3 bytes for each
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


def _frame(rows):
    paths, *columns = zip(*rows)
    return pandas.DataFrame(
        {name: list(values) for name, values in zip(("pixels", "label"), columns)}, index=list(paths)
    )
