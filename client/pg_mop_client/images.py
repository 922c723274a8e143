"""Folders of pictures as rows: an array of pixels each, and the folder's name as the label."""

import pathlib

import numpy
import pandas

from pg_mop_client.errors import ClientError, needed

CHUNK_PIXELS = 4_000_000  # numbers in memory at a time, about
MODES = {"RGB": 3, "RGBA": 4, "L": 1}


def chunks(folder, size=None, mode="RGB"):
    """The pictures below a folder as DataFrames of some rows each, in the order of their paths: `pixels`, an array
    (height, width, channels) of 0 to 255; `label`, the name of the folder within `folder` that it is in, where there
    are such folders; by the path within `folder` as index.

    `size`: (height, width), to which they are resized; None: all are of one size. `mode`: 'RGB', 'RGBA' or 'L' (grey).
    Hidden files are passed over. Raises ClientError, also for a file that is no picture.
    """
    image = needed("PIL.Image", "images")
    if mode not in MODES:
        raise ClientError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if size is not None and not (isinstance(size, (tuple, list)) and len(size) == 2 and all(
            isinstance(side, int) and side > 0 for side in size)):
        raise ClientError(f"size must be (height, width), not {size!r}")
    folder = pathlib.Path(folder)
    paths = sorted(path for path in folder.rglob("*") if (path.is_file() or path.is_symlink()) and not any(
        part.startswith(".") for part in path.relative_to(folder).parts))
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
        raise ClientError(f"{str(paths[labelled.index(False)])!r} is in no folder of a class",
                          hint="A folder for each class, or none at all.")
    return _read(image, paths, names, size, mode)


def _read(image, paths, names, size, mode):
    rows, wanted = [], size and tuple(size)
    for path, parts in zip(paths, names):
        try:
            with image.open(path) as opened:
                if opened.mode.startswith("I") or opened.mode == "F":
                    raise ClientError(f"{str(path)!r} has more than 8 bits a pixel, which would be cut off",
                                      hint="pack((x, y), ...) takes arrays of any numbers.")
                picture = needed("PIL.ImageOps", "images").exif_transpose(opened).convert(mode)
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise ClientError(f"{str(path)!r} cannot be read as a picture: {error}") from None
        if size is not None:
            picture = picture.resize(wanted[::-1], image.Resampling.BILINEAR)
        found = picture.size[::-1]
        wanted = wanted or found
        if found != wanted:
            raise ClientError(f"{str(path)!r} has {found[0]} x {found[1]} pixels, those before it {wanted[0]} x "
                              f"{wanted[1]}", hint=f"size=({wanted[0]}, {wanted[1]})")
        pixels = numpy.asarray(picture).reshape(*wanted, MODES[mode])
        rows.append(("/".join(parts), pixels, parts[0]) if len(parts) > 1 else ("/".join(parts), pixels))
        if len(rows) * pixels.size >= CHUNK_PIXELS:
            yield _frame(rows)
            rows = []
    if rows:
        yield _frame(rows)


def _frame(rows):
    paths, *columns = zip(*rows)
    return pandas.DataFrame({name: list(values) for name, values in zip(("pixels", "label"), columns)},
                            index=list(paths))
