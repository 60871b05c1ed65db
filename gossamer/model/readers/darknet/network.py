"""Builds graphs of .cfg files (DarknetNetwork), and reads .weights files (WeightsFile)."""

from __future__ import annotations

import math
import string
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gossamer.errors import ModelError
from gossamer.expression import Value
from gossamer.io.limits import whole
from gossamer.model.builder import GraphBuilder, NodeNames
from gossamer.model.metadata import DetectionHead
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.other_kinds import by_content

_MOST_NUMBERS = 2**40
"""Maximum number of parameters of a layer, more than any real file has."""
_MOST_MISSING = 2**24
"""If the file ends early, up to this many missing parameters of a layer are read as zeros, so that
the reader can continue and count all missing parameters."""
_HEADER_START = 12
"""Number of bytes of the version numbers at the start of the header. In a .weights file, some of
these bytes are 0; if all are printable characters, the file is text."""


@dataclass(frozen=True)
class Layer:
    """The result of a layer of Darknet.

    value: name of the graph's value.
    channels, height, width: sizes of the value, without the batch.
    flat: whether the value is a matrix (N, channels), like the result of a connected layer.
    is_head: whether the layer is a detection layer; no later layer may read its result.
    """

    value: str
    channels: int
    height: int = 1
    width: int = 1
    flat: bool = False
    is_head: bool = False

    @property
    def size(self) -> int:
        return self.channels * self.height * self.width

    @property
    def image(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def shape_text(self) -> str:
        return f"{self.channels}x{self.height}x{self.width}"


@dataclass(frozen=True)
class Head:
    """A detection layer.

    layer: the output of the network that the detection layer reads.
    head: how boxes are decoded; its mask holds indices of `anchors`.
    anchors: width and height, in pixels of the input, of all anchors that the section lists.
    classes: number of classes.
    section: section of the .cfg file.
    """

    layer: Layer
    head: DetectionHead
    anchors: tuple[tuple[float, float], ...]
    classes: int
    section: Section


class DarknetNetwork:
    """A graph to which the layers of a .cfg are appended one after another.

    build: builder of the graph.
    weights: the .weights file, from which parameters are read in order.
    input: input of the first layer.
    layers: result of each layer so far, by Darknet's index of the layer.
    heads: detection layers so far.
    """

    def __init__(self, build: GraphBuilder, weights: WeightsFile, net_input: Layer) -> None:
        self.build = build
        self.weights = weights
        self.input = net_input
        self.layers: list[Layer] = []
        self.heads: list[Head] = []

    def names(self, section: Section, part: str = "") -> NodeNames:
        """Return the names of a node.

        part: which part of the layer the node computes, for layers of several nodes.
        """
        name = f"{section.kind}_{section.index}{'.' if part else ''}{part}"
        return NodeNames(name=name, source=section.source)

    def before(self, section: Section) -> Layer:
        """Return the result of the layer before a section.

        Raises UnsupportedError if that layer is a detection layer.
        """
        return self._usable(section, self.layers[-1] if self.layers else self.input,
                            section.index - 1)

    def image_before(self, section: Section) -> Layer:
        """Return the result of the layer before a section, as images (N, C, H, W)."""
        return self.as_image(section, self.before(section))

    def layer(self, section: Section, index: int, key: str) -> Layer:
        """Return the result of a layer, as images.

        index: index of the layer; a negative index counts back from the section.
        key: the option that names the layer.
        Raises ModelError if there is no such layer before the section, and UnsupportedError if the
        layer is a detection layer.
        """
        number = index if index >= 0 else section.index + index
        if not 0 <= number < section.index:
            raise section.error(f"{key} names layer {index}, but only {section.index} layers come "
                                "before it", key)
        return self.as_image(section, self._usable(section, self.layers[number], number))

    def as_image(self, section: Section, layer: Layer) -> Layer:
        """Return a layer as images; a matrix becomes images of one pixel."""
        if not layer.flat:
            return layer
        value = self.build.reshape(layer.value, (0, *_sizes(layer)),
                                   **self.names(section, "image"))
        return replace(layer, value=value, flat=False)

    def as_matrix(self, section: Section, layer: Layer) -> Layer:
        """Return a layer as a matrix (N, channels * height * width)."""
        if layer.flat:
            return layer
        value = self.build.flatten(layer.value, **self.names(section, "matrix"))
        return Layer(value, layer.size, flat=True)

    def elementwise(self, section: Section, part: str, value: Value) -> str:
        operands, expression = value.composer.build(value)
        return self.build.elementwise(expression, *operands, **self.names(section, part))

    def channels(self, section: Section, layer: Layer, start: int, end: int, part: str) -> Layer:
        """Return the channels from `start` to `end` (exclusive) of a layer."""
        if (start, end) == (0, layer.channels):
            return layer
        value = self.build.add("slice", [layer.value], starts=(start,), ends=(end,), axes=(1,),
                               steps=(1,), **self.names(section, part))
        return replace(layer, value=value, channels=end - start)

    def _usable(self, section: Section, layer: Layer, number: int) -> Layer:
        if layer.is_head:
            raise section.unsupported(f"reads layer {number}, a detecting layer; gossamer computes "
                                      "detecting layers only as the end of a network")
        return layer


def _sizes(layer: Layer) -> tuple[int, int, int]:
    return layer.channels, layer.height, layer.width


class WeightsFile:
    """The parameters in a .weights file, which are read in order.

    The header consists of three int32 (major version, minor version, revision) and the number of
    photos seen in training. This number has 8 bytes from version 0.2 on, and 4 bytes in older
    versions.

    path: path of the file.
    revision: 0 in files of the original Darknet, positive in files of AlexeyAB's fork.
    transposed: whether matrices of connected layers are stored as (inputs, outputs), as in very old
    files with a version above 1000.
    """

    def __init__(self, path: Path) -> None:
        """Read a file.

        Raises InputError if the file cannot be read, and ModelError if it is too short for a
        header, ends within a number, or is text.
        """
        data = whole(path)
        if (other_kind := by_content(data)) is not None:
            raise ModelError(f"{path}: {other_kind}")
        if data and set(data[:_HEADER_START]) <= set(string.printable.encode()):
            raise ModelError(f"{path}: is text, not a .weights file; was a pointer (Git LFS) or a "
                             "web page downloaded in its place?")
        major, minor, self.revision = struct.unpack("<3i", data[:12].ljust(12, b"\0"))
        self.transposed = major > 1000 or minor > 1000
        header = 20 if major * 10 + minor >= 2 and not self.transposed else 16
        if len(data) < header:
            raise ModelError(f"{path}: has {len(data)} bytes, fewer than the header of a .weights "
                             "file")
        if (len(data) - header) % 4:
            raise ModelError(f"{path}: has {len(data)} bytes and ends within a number; is it cut "
                             "short?")
        self.path = path
        self._numbers = np.frombuffer(data, "<f4", offset=header)
        self._taken = 0
        self._short: Section | None = None

    def take(self, section: Section, *shape: int) -> np.ndarray:
        """Return the next parameters, as a float32 array of this shape.

        After the end of the file, the parameters are zeros, and finish() reports how many are
        missing. Raises ModelError at once if the file ends before the end of an array of more than
        _MOST_MISSING parameters.
        """
        count = math.prod(shape)
        if count > _MOST_NUMBERS:
            raise section.error(f"has {count} weights, which no .weights file holds; its sizes are "
                                "wrong")
        start, self._taken = self._taken, self._taken + count
        if self._taken > self._numbers.size:
            if count > _MOST_MISSING:
                raise section.error(f"alone needs {count} numbers, and {self.path} holds "
                                    f"{self._numbers.size}; is it the .weights file of another "
                                    ".cfg?")
            self._short = self._short or section
            return np.broadcast_to(np.float32(0), shape)
        return self._numbers[start:self._taken].reshape(shape)

    def finish(self, cfg: Path, notices: Sequence[str]) -> None:
        """Raise ModelError unless the layers have read exactly the parameters in the file.

        notices: warnings about the .cfg file, which may name the cause.
        """
        if self._taken == self._numbers.size:
            return
        if self._short is not None:
            difference = f"too short: it ends within {self._short.source}"
            of_first = ", or of the first layers only, to start training from"
        else:
            difference = f"too long by {self._numbers.size - self._taken}"
            of_first = ""
        told = "".join(f" ({notice})" for notice in notices)
        raise ModelError(f"{self.path}: holds {self._numbers.size} numbers, {cfg} needs "
                         f"{self._taken}, so it is {difference}; is it the .weights file of "
                         f"another .cfg{of_first}?{told}")
