"""From the text of the command line to values: shapes, preprocessing, arrays in files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.cli import show
from gossamer.cli.show import shape_text
from gossamer.errors import InputError
from gossamer.io.images import LONGEST, PRESETS, Preprocessing, load_image
from gossamer.model import zoo
from gossamer.model.infer.resolve import with_shapes

if TYPE_CHECKING:
    from gossamer.model.graph import Graph, ValueInfo


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
        name = name or graph.inputs[0].name
        if name in shapes:
            raise InputError(f"--shape {text}: input {name!r} has a --shape already")
        shapes[name] = shape
    return with_shapes(graph, shapes)


def preprocessing(model: str, graph: Graph, preset: str | None, *,
                  channels: str | None, size: str | None, resize: int | None,
                  scale: float | None, mean: str | None, std: str | None) -> Preprocessing:
    """What the options ask for; else what the zoo or the model's file knows; else ImageNet's, with
    a notice. The size is that of the network's input unless it is given. Raises InputError where
    photos prepared like this do not fit the network."""
    if len(graph.inputs) > 1:
        raise InputError(f"{model}: takes the inputs {_names(graph)}, and photos are one; give "
                         "--input NAME=X.npy for each")
    input_shape = graph.inputs[0].shape
    wanted = _size(size) if size is not None else None
    if wanted and len(input_shape) == 4 and any(
            taken not in (None, length)
            for taken, length in zip(input_shape[2:], wanted, strict=True)):
        raise InputError(f"--size {size}: {model} takes {shape_text(input_shape[2:])}")
    if wanted and max(wanted) > LONGEST:
        raise InputError(f"--size {size}: lengths are 1 to {LONGEST}")
    if resize is not None and resize < 1:
        raise InputError(f"--resize {resize}: expected 1 or more")
    explicit: dict[str, Any] = {"scale": scale, "mean": _numbers("mean", mean),
                                "std": _numbers("std", std)}
    explicit = {key: value for key, value in explicit.items() if value is not None}
    if scale is not None and not math.isfinite(scale):
        raise InputError(f"--scale {scale}: expected a finite number")
    if preset is not None and preset not in PRESETS:
        raise InputError(f"--preprocess {preset}: expected one of {', '.join(PRESETS)}")
    if preset is not None:
        base = PRESETS[preset]
    elif model in zoo.MODELS:
        base = zoo.MODELS[model].preprocessing
    elif graph.metadata.picture:
        base = Preprocessing(graph.metadata.picture, channels="grey")
    elif explicit or channels:
        base = PRESETS["none"]
    else:
        base = PRESETS["imagenet"]
    _check_channels(channels or base.channels, model, input_shape)
    if channels:
        flip = {base.channels, channels} == {"rgb", "bgr"}
        step = -1 if flip else 1
        if channels == "grey" and base.channels != "grey":
            for option, values in (("--mean", base.mean), ("--std", base.std)):
                if len(values) > 1 and option[2:] not in explicit:
                    raise InputError(f"--grey: the preparation {preset or model} has one number "
                                     f"a colour; give {option} too, or another --preprocess")
        explicit = {"mean": base.mean[::step], "std": base.std[::step], **explicit}
        explicit["channels"] = channels
    try:
        chosen = replace(base, **explicit)
        chosen = chosen.fitted((None, None, *wanted) if wanted else input_shape)
        _check_photos_fit(chosen, model, graph.inputs[0])
        chosen = chosen if resize is None else replace(chosen, resize=resize)
    except InputError as error:
        # the preparation does not know by which options it was asked for
        text = str(error)
        for option in ("mean", "std", "resize"):
            if text.startswith(f"{option} "):
                text = f"--{text}"
        raise InputError(text) from None
    if base is PRESETS["imagenet"] and preset is None and model not in zoo.MODELS:
        show.notice("photos are prepared as for ImageNet (RGB, mean and deviation normalised), "
                    "and the results mean nothing if the network was trained otherwise; "
                    "--preprocess and --mean, --std, --scale, --bgr, --grey choose otherwise")
    return chosen


def _check_channels(order: str, model: str, shape: Sequence[int | None]) -> None:
    channels = 1 if order == "grey" else 3
    if len(shape) == 4 and shape[1] not in (None, channels):
        other = {1: "; --grey makes one", 3: "; leave --grey out"}.get(shape[1] or 0, "")
        said = "--grey: a photo has 1 channel" if channels == 1 else "a photo has 3 channels"
        raise InputError(f"{said}, {model} takes {shape[1]}{other}")


def _check_photos_fit(prepare: Preprocessing, model: str, info: ValueInfo) -> None:
    """Raises InputError, before any photo is scaled, where the network takes other sizes."""
    shape = info.shape
    channels = 1 if prepare.channels == "grey" else 3
    if len(shape) == 2 and shape[1]:
        if prepare.size and math.prod(prepare.size) * channels == shape[1]:
            return
        side = math.isqrt(shape[1])
        grey = f"; try --grey --size {side}" if side * side == shape[1] else ""
        made = shape_text((channels, *(prepare.size or ("?", "?"))))
        raise InputError(f"{model}: takes {shape[1]} numbers, a photo as it is prepared now has "
                         f"{made}{grey}")
    if len(shape) != 4:
        raise InputError(f"{model}: input {info.name!r} has shape {shape_text(shape)} and takes "
                         "no photos; give --input X.npy")


def photo_batches(paths: Sequence[str], batch: int, prepare: Preprocessing,
                  input_shape: Sequence[int | None]) -> Iterator[tuple[np.ndarray, ...]]:
    """The prepared photos, `batch` at a time, in the shape that the network's input has."""
    for start in range(0, len(paths), batch):
        photos = prepare.batch([load_image(path) for path in paths[start : start + batch]])
        if len(input_shape) == 2 and photos[0].size == input_shape[1]:
            photos = photos.reshape(len(photos), -1)
        yield (photos,)


def read_inputs(texts: Sequence[str], graph: Graph, option: str = "--input") -> list[np.ndarray]:
    """The arrays of the options of that name, in the order of the graph's inputs. A text is a
    file, or NAME=FILE; a .npz file gives several inputs by their names. Raises InputError."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    names = [info.name for info in graph.inputs]
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or (name not in names and Path(text).exists()):
            name, file = "", text
        elif name not in names:
            raise InputError(f"{option} {text}: {graph.file or graph.name} has no input {name!r}; "
                             f"its inputs: {_names(graph)}")
        if not file:
            raise InputError(f"{option} {text}: the name is empty; expected a .npy file")
        for inner, values in _arrays(file, option).items():
            target = name or inner or (names[0] if len(names) == 1 else "")
            if not target:
                raise InputError(f"{option} {text}: which input? {graph.file or graph.name} has "
                                 f"{_names(graph)}; give {option} NAME={file} for each")
            if target not in names or (name and inner):
                raise InputError(f"{option} {text}: holds an array {inner!r}; expected a .npy file "
                                 f"of one array, or the inputs: {_names(graph)}")
            if target in found:
                raise InputError(f"{option} {text}: input {target!r} is given already")
            found[target] = (file, values)
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{option} {', '.join(texts)}: nothing for input "
                         f"{', '.join(map(repr, missing))}; give {option} {missing[0]}=X.npy")
    _check_arrays(graph, found, option)
    return [found[name][1] for name in names]


def has_batch(graph: Graph) -> bool:
    """Whether the network takes any number of inputs at once."""
    return any(info.shape[:1] == (None,) for info in graph.inputs)


def array_batches(arrays: Sequence[np.ndarray], graph: Graph, rows: int,
                  batch: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The rows of the inputs, `batch` at a time; inputs without a batch go along whole."""
    for start in range(0, max(rows, 1), max(batch, 1)):
        yield tuple(values[start : start + batch] if info.shape[:1] == (None,) else values
                    for values, info in zip(arrays, graph.inputs, strict=True))


def _arrays(file: str, option: str) -> dict[str, np.ndarray]:
    """The arrays of a .npy file (named "") or a .npz file."""
    path = Path(file)
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise InputError(f"{option} {file}: no such file") from None
    except OSError as error:
        raise InputError(f"{option} {file}: {error.strerror or 'cannot be read as a .npy array'}"
                         ) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error)
        if "allow_pickle" in reason:  # NumPy's advice, which runs code that is in the file
            with path.open("rb") as opened:
                array = opened.read(6) == b"\x93NUMPY" or zipfile.is_zipfile(path)
            reason = "holds Python objects, expected numbers" if array else "is no .npy file"
        raise InputError(f"{option} {file}: cannot be read as a .npy array: {reason}") from None


def _check_arrays(graph: Graph, found: dict[str, tuple[str, np.ndarray]], option: str) -> None:
    rows: tuple[str, int] | None = None
    for info in graph.inputs:
        file, values = found[info.name]
        batched = info.shape[:1] == (None,)
        if batched and values.ndim == 0:
            raise InputError(f"{option} {file}: expected one array whose first dimension is the "
                             "batch")
        if len(values.shape) != len(info.shape) or any(
                size not in (None, have)
                for size, have in zip(info.shape, values.shape, strict=True)):
            hint = ""
            if values.shape == info.shape[1:]:
                hint = "; the batch comes first: save x[None]"
            raise InputError(f"{option} {file}: has shape {shape_text(values.shape)}, input "
                             f"{info.name!r} takes {shape_text(info.shape)}{hint}")
        if values.dtype != np.dtype(info.dtype):
            raise InputError(f"{option} {file}: has dtype {values.dtype}, input {info.name!r} "
                             f"takes {info.dtype}; save it with .astype({info.dtype!r})")
        if batched and rows and rows[1] != len(values):
            raise InputError(f"{option} {file}: has {len(values)} rows, {rows[0]} has {rows[1]}; "
                             "all inputs of a network have as many")
        if batched:
            rows = (file, len(values))


def _names(graph: Graph) -> str:
    return ", ".join(repr(info.name) for info in graph.inputs)


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"--{option} {text}: expected finite numbers like 0.5 or 104,117,123")
    return numbers


def _size(text: str) -> tuple[int, int]:
    try:
        lengths = [int(part) for part in text.split("x")]
        height, width = lengths * 2 if len(lengths) == 1 else lengths
    except ValueError:
        raise InputError(f"--size {text}: expected 224 or 224x320 (height x width)") from None
    if min(height, width) < 1:
        raise InputError(f"--size {text}: lengths are 1 or more")
    return height, width
