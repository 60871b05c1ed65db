"""Conversion of the photo options to a preprocessing that matches the network's input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.cli.arguments import check_choice, input_names
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.io.images import LONGEST, PRESETS, Preprocessing, open_image
from gossamer.io.text import shape_text
from gossamer.model.input_format import InputFormat
from gossamer.model.photos import batch_as_taken

if TYPE_CHECKING:
    from gossamer.model.graph import Graph, ValueInfo

_ASSUMED = PRESETS["imagenet"]
"""The preprocessing that is used if neither the options nor the network specify one."""


@dataclass(frozen=True)
class PhotoOptions:
    """The values of the preprocessing options; None or False if not set."""

    preprocess: str | None = None
    size: str | None = None
    resize: int | None = None
    scale: float | None = None
    mean: str | None = None
    std: str | None = None
    bgr: bool = False
    grey: bool = False

    def __post_init__(self) -> None:
        if self.bgr and self.grey:
            raise InputError("--bgr --grey: use only one of them")

    @property
    def channels(self) -> str | None:
        """The channel order of --bgr or --grey."""
        return "bgr" if self.bgr else "grey" if self.grey else None

    def names(self) -> list[str]:
        """Return the names of the options that are set."""
        return [f"--{name}" for name, value in vars(self).items()
                if value is not None and value is not False]


def preprocessing(model: str, graph: Graph, options: PhotoOptions) -> Preprocessing:
    """Return the preprocessing that the options specify, else the network's, else ImageNet's.

    If the preprocessing of ImageNet is assumed, a notice is printed. Photos are resized to the
    network's input unless an option sets a size. Raises InputError if preprocessed photos would not
    match the network.
    """
    if len(graph.network_inputs) > 1:
        raise InputError(f"{model}: has the inputs {input_names(graph)}, but photos provide only "
                         "one; use --input NAME=X.npy for each")
    input_shape = graph.network_inputs[0].shape
    size = _checked_size(options, model, input_shape)
    fields = _number_fields(options)
    base = _base(options, model, graph, bool(fields))
    is_assumed = base is _ASSUMED and options.preprocess is None and (
        graph.metadata.preprocessing is None)
    if is_assumed and options.resize is None and len(input_shape) == 4 and (
            None in input_shape[2:]):
        # do not resize pictures for a network that accepts any size
        base = replace(base, size=None, resize=None)
    _check_channels(options.channels or base.channels, model, input_shape)
    if options.channels:
        fields = _in_channel_order(base, options, model, fields)
    try:
        prepare = replace(base, **fields)
        prepare = prepare.fitted((None, None, *size) if size else input_shape)
        _check_photos_fit(prepare, model, graph.network_inputs[0])
        prepare = prepare if options.resize is None else replace(prepare, resize=options.resize)
        _check_normalisation(graph.inputs[0], prepare, options)
    except InputError as error:
        # error messages of Preprocessing contain its field names; replace them by the options
        text = str(error)
        for option in ("mean", "std", "resize"):
            if text.startswith(f"{option} "):
                text = f"--{text}"
        raise InputError(text) from None
    if is_assumed:
        terminal.notice("assuming ImageNet's preprocessing (RGB, normalised by mean and standard "
                        "deviation); if the network was trained with another one, the results are "
                        "meaningless: see --preprocess, --mean, --std, --scale, --bgr, --grey")
    return prepare


def _check_normalisation(info: ValueInfo, prepare: Preprocessing, options: PhotoOptions) -> None:
    """Raise InputError if options contradict the normalisation in a saved plan."""
    if info.given is None or not info.given.changes_values or not options.names():
        return
    asked = InputFormat.from_metadata(prepare)
    if (asked.factors, asked.shifts) != (info.given.factors, info.given.shifts):
        raise InputError(f"{', '.join(options.names())}: the plan contains the normalisation of "
                         f"{info.name!r}, {info.given}; omit these options, or compile the "
                         "network again")


def photo_batches(paths: Sequence[str], batch: int, prepare: Preprocessing,
                  info: ValueInfo) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield preprocessed photos, `batch` at a time, as input arrays."""
    for start in range(0, len(paths), batch):
        images = [open_image(path) for path in paths[start : start + batch]]
        yield (batch_as_taken(prepare, info, images),)


def _checked_size(options: PhotoOptions, model: str,
                  input_shape: Sequence[int | None]) -> tuple[int, int] | None:
    """Return the height and width of --size, or None.

    Raises InputError for an invalid --size or --resize.
    """
    size = _size(options.size) if options.size is not None else None
    if size and len(input_shape) == 4 and any(
            network_length not in (None, length)
            for network_length, length in zip(input_shape[2:], size, strict=True)):
        raise InputError(f"--size {options.size}: {model} expects {shape_text(input_shape[2:])}")
    if size and max(size) > LONGEST:
        raise InputError(f"--size {options.size}: expected lengths from 1 to {LONGEST}")
    if options.resize is not None and options.resize < 1:
        raise InputError(f"--resize {options.resize}: expected 1 or more")
    return size


def _size(text: str) -> tuple[int, int]:
    try:
        lengths = [int(part) for part in text.split("x")]
        height, width = lengths * 2 if len(lengths) == 1 else lengths
    except ValueError:
        raise InputError(f"--size {text}: expected 224 or 224x320 (height x width)") from None
    if min(height, width) < 1:
        raise InputError(f"--size {text}: expected lengths of 1 or more")
    return height, width


def _number_fields(options: PhotoOptions) -> dict[str, Any]:
    """Return the fields of Preprocessing set by --scale, --mean and --std."""
    fields: dict[str, Any] = {"scale": options.scale, "mean": _numbers("mean", options.mean),
                              "std": _numbers("std", options.std)}
    if options.scale is not None and not math.isfinite(options.scale):
        raise InputError(f"--scale {options.scale}: expected a finite number")
    return {name: value for name, value in fields.items() if value is not None}


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


def check_preset(preset: str) -> Preprocessing:
    """Return the preset of --preprocess. Raises InputError for an unknown name."""
    check_choice("--preprocess", preset, PRESETS)
    return PRESETS[preset]


def _base(options: PhotoOptions, model: str, graph: Graph, has_numbers: bool) -> Preprocessing:
    """Return the preprocessing before options such as --mean are applied to it.

    has_numbers: whether --scale, --mean or --std is set.
    """
    if options.preprocess is not None:
        return check_preset(options.preprocess)
    if graph.metadata.preprocessing is not None:
        return graph.metadata.preprocessing
    if graph.metadata.picture:
        return Preprocessing(graph.metadata.picture, channels="grey")
    return PRESETS["none"] if has_numbers or options.channels else _ASSUMED


def _in_channel_order(base: Preprocessing, options: PhotoOptions, model: str,
                      fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Preprocessing that depend on the channel order.

    The mean and the standard deviation are taken from `fields` if they are set there. Otherwise
    their values in `base` are reordered to the channel order of the options.

    fields: fields of Preprocessing that other options set.
    """
    channels = options.channels
    if channels == "grey" and base.channels != "grey":
        for name, values in (("mean", base.mean), ("std", base.std)):
            if len(values) > 1 and name not in fields:
                raise InputError(f"--grey: the preprocessing {options.preprocess or model} has one "
                                 f"{name} per channel; set --{name} too, or another --preprocess")
    step = -1 if {base.channels, channels} == {"rgb", "bgr"} else 1
    return {"mean": base.mean[::step], "std": base.std[::step], **fields, "channels": channels}


def _check_channels(order: str, model: str, shape: Sequence[int | None]) -> None:
    channels = 1 if order == "grey" else 3
    if len(shape) == 4 and shape[1] not in (None, channels):
        advice = {1: "; use --grey", 3: "; omit --grey"}.get(shape[1] or 0, "")
        reason = "--grey: a photo has 1 channel" if channels == 1 else "a photo has 3 channels"
        raise InputError(f"{reason}, but {model} expects {shape[1]}{advice}")


def _check_photos_fit(prepare: Preprocessing, model: str, info: ValueInfo) -> None:
    """Raise InputError if preprocessed photos do not match the network's input."""
    shape = info.shape
    channels = 1 if prepare.channels == "grey" else 3
    if len(shape) == 2 and shape[1]:
        if prepare.size and math.prod(prepare.size) * channels == shape[1]:
            return
        side = math.isqrt(shape[1])
        advice = f"; try --grey --size {side}" if side * side == shape[1] else ""
        photo_shape = shape_text((channels, *(prepare.size or ("?", "?"))))
        raise InputError(f"{model}: expects {shape[1]} numbers, but a preprocessed photo has "
                         f"{photo_shape}{advice}")
    if len(shape) != 4:
        raise InputError(f"{model}: input {info.name!r} of shape {shape_text(shape)} does not "
                         "accept photos; use --input X.npy")
