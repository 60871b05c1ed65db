"""From the text of the command line to values: shapes, preprocessing, arrays in files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from gossamer import show
from gossamer.errors import InputError
from gossamer.image import PRESETS, Preprocessing, load_image
from gossamer.model import zoo
from gossamer.model.shapes import with_shapes

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


def with_input_shapes(graph: Graph, texts: Sequence[str]) -> Graph:
    """The graph with open dimensions set from texts like image=3,224,224 (without the batch; the
    first input where there is no name). Raises InputError when one contradicts the graph."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        try:
            shape = [int(part) for part in sizes.replace("x", ",").split(",")]
        except ValueError:
            raise InputError(f"--shape {text}: expected sizes like 3,224,224 or "
                             f"{graph.inputs[0].name}=3,224,224") from None
        shapes[name or graph.inputs[0].name] = shape
    return with_shapes(graph, shapes)


def preprocessing(model: str, input_shape: Sequence[int | None], preset: str | None, *,
                  channels: str | None, size: str | None, resize: int | None,
                  scale: float | None, mean: str | None, std: str | None) -> Preprocessing:
    """What the options ask for; else what the zoo knows of the model; else ImageNet's, with a
    notice. The size is that of the network's input unless it is given."""
    wanted = _size(size) if size else None
    explicit: dict[str, Any] = {"scale": scale, "mean": _numbers("mean", mean),
                                "std": _numbers("std", std)}
    explicit = {key: value for key, value in explicit.items() if value is not None}
    if preset is not None and preset not in PRESETS:
        raise InputError(f"--preprocess {preset}: expected one of {', '.join(PRESETS)}")
    if preset is not None:
        base = PRESETS[preset]
    elif model in zoo.MODELS:
        base = zoo.MODELS[model].preprocessing
    elif explicit or channels:
        base = PRESETS["none"]
    else:
        base = PRESETS["imagenet"]
        show.notice("photos are prepared as for ImageNet (RGB, mean and deviation normalised); "
                    "--preprocess and --mean, --std, --scale, --bgr, --grey choose otherwise")
    if channels:
        flip = {base.channels, channels} == {"rgb", "bgr"}
        step = -1 if flip else 1
        explicit = {"mean": base.mean[::step], "std": base.std[::step], **explicit}
        explicit["channels"] = channels
    chosen = replace(base, **explicit)
    chosen = chosen.fitted((None, None, *wanted) if wanted else input_shape)
    return chosen if resize is None else replace(chosen, resize=resize)


def photo_batches(paths: Sequence[Path], batch: int, prepare: Preprocessing,
                  input_shape: Sequence[int | None]) -> Iterator[np.ndarray]:
    """The prepared photos, `batch` at a time, in the shape that the network's input has."""
    for start in range(0, len(paths), batch):
        photos = prepare.batch([load_image(path) for path in paths[start : start + batch]])
        if len(input_shape) == 2 and photos[0].size == input_shape[1]:
            photos = photos.reshape(len(photos), -1)
        yield photos


def read_array(path: Path) -> np.ndarray:
    """The array of a .npy file; its first dimension is the batch. Raises InputError."""
    try:
        values = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"--input {path}: no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"--input {path}: cannot be read as a .npy array: {error}") from None
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise InputError(f"--input {path}: expected one array whose first dimension is the batch")
    return values


def check_writable(path: Path, outputs: int) -> None:
    """Raises InputError when write_arrays could not write here: said before the work, not
    after it."""
    if path.suffix not in (".npy", ".npz"):
        raise InputError(f"--output {path}: expected a name that ends in .npy or .npz")
    if path.suffix == ".npy" and outputs > 1:
        raise InputError(f"--output {path}: the network has {outputs} outputs; give a name that "
                         "ends in .npz")
    if path.is_dir():
        raise InputError(f"--output {path}: is a folder")
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--output {path}: the folder {path.parent} cannot be written to")


def write_arrays(path: Path, arrays: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Writes a .npy file of one array or a .npz file of several, whole or not at all."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            if path.suffix == ".npy":
                np.save(file, arrays[0])
            else:
                _write_npz(file, dict(zip(names, arrays, strict=True)))
        # mkstemp's files are private; the result is as readable as any other new file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written: {error.strerror}") from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _write_npz(file: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    # np.savez takes the names as keywords, where "file" would be its own
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{option} {text}: expected numbers like 0.5 or 104,117,123") from None


def _size(text: str) -> tuple[int, int]:
    try:
        lengths = [int(part) for part in text.split("x")]
        height, width = lengths * 2 if len(lengths) == 1 else lengths
    except ValueError:
        raise InputError(f"--size {text}: expected 224 or 224x320 (height x width)") from None
    if min(height, width) < 1:
        raise InputError(f"--size {text}: lengths are 1 or more")
    return height, width
