"""DarknetNetwork: builds the graph of a .cfg file layer by layer, and records the result of each
layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gossamer.expression import Expression
from gossamer.model.builder import GraphBuilder
from gossamer.model.detector_metadata import DetectionHead
from gossamer.model.node_builder import NodeNames
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.darknet.weights import WeightsFile


@dataclass(frozen=True)
class Layer:
    """The result of a layer of Darknet.

    value: name of the graph's value.
    channels, height, width: sizes of the value, without the batch.
    flat: whether the value is a matrix (N, channels), like the result of a connected layer.
    is_head: whether the layer is a detecting layer, whose result no later layer may read.
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
    """A detecting layer.

    layer: the output of the network that the detecting layer reads.
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
    weights: numbers of the layers.
    input: input of the first layer.
    layers: result of each layer so far, by Darknet's number of the layer.
    heads: detecting layers so far.
    """

    def __init__(self, build: GraphBuilder, weights: WeightsFile, net_input: Layer) -> None:
        self.build = build
        self.weights = weights
        self.input = net_input
        self.layers: list[Layer] = []
        self.heads: list[Head] = []

    def names(self, section: Section, part: str = "") -> NodeNames:
        """Returns the names of a node. part: the node's part of the layer, for layers of several
        nodes."""
        name = f"{section.kind}_{section.index}{'.' if part else ''}{part}"
        return NodeNames(name=name, source=section.source)

    def before(self, section: Section) -> Layer:
        """Returns the result of the layer before a section. Raises UnsupportedError where this
        layer is a detecting layer."""
        return self._usable(section, self.layers[-1] if self.layers else self.input,
                            section.index - 1)

    def image_before(self, section: Section) -> Layer:
        """Returns the result of the layer before a section, as images (N, C, H, W)."""
        return self.as_image(section, self.before(section))

    def layer(self, section: Section, index: int, key: str) -> Layer:
        """Returns the result of a layer, as images.

        index: number of the layer; a negative number counts back from the section.
        key: the option that names the layer.
        Raises ModelError where there is no such layer before the section, and UnsupportedError
        where the layer is a detecting layer.
        """
        number = index if index >= 0 else section.index + index
        if not 0 <= number < section.index:
            raise section.error(f"{key} names layer {index}, and {section.index} layers come "
                                "before it", key)
        return self.as_image(section, self._usable(section, self.layers[number], number))

    def as_image(self, section: Section, layer: Layer) -> Layer:
        """Returns a layer as images; a matrix becomes images of one pixel."""
        if not layer.flat:
            return layer
        value = self.build.reshape(layer.value, (0, *_sizes(layer)),
                                   **self.names(section, "image"))
        return replace(layer, value=value, flat=False)

    def as_matrix(self, section: Section, layer: Layer) -> Layer:
        """Returns a layer as a matrix (N, channels * height * width)."""
        if layer.flat:
            return layer
        value = self.build.flatten(layer.value, **self.names(section, "matrix"))
        return Layer(value, layer.size, flat=True)

    def elementwise(self, section: Section, part: str, operands: Sequence[str],
                    expression: Expression) -> str:
        return self.build.elementwise(expression, *operands, **self.names(section, part))

    def channels(self, section: Section, layer: Layer, start: int, end: int, part: str) -> Layer:
        """Returns some channels of a layer."""
        if (start, end) == (0, layer.channels):
            return layer
        value = self.build.add("slice", [layer.value], starts=(start,), ends=(end,), axes=(1,),
                               steps=(1,), **self.names(section, part))
        return replace(layer, value=value, channels=end - start)

    def _usable(self, section: Section, layer: Layer, number: int) -> Layer:
        if layer.is_head:
            raise section.unsupported(f"reads layer {number}, which detects: the network's outputs "
                                      "end before it")
        return layer


def _sizes(layer: Layer) -> tuple[int, int, int]:
    return layer.channels, layer.height, layer.width
