"""Reads Darknet's .cfg and .weights files into graphs.

Detection layers are not part of the graph: their inputs are the graph's outputs, and their options
determine how boxes are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gossamer.errors import ModelError
from gossamer.io.images import LONGEST, Preprocessing
from gossamer.io.labels.reader import without_blanks
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph, warn_of_broken_weights
from gossamer.model.metadata import NMS_KINDS, DetectionHead, DetectorMetadata, ModelMetadata
from gossamer.model.readers.darknet import layers
from gossamer.model.readers.darknet.cfg import ALEXEYAB_ONLY, Section, read_sections, unknown_keys
from gossamer.model.readers.darknet.network import DarknetNetwork, Head, Layer, WeightsFile

_MOST_CLASSES = 10**5
"""Maximum number of outputs that get names such as "class 0" if no file names the classes."""

Anchors = tuple[tuple[float, float], ...]


def load_darknet(cfg: Path, weights: Path, names: Path | None = None) -> Graph:
    """Return the graph of a .cfg file with the parameters of a .weights file.

    The outputs of a network with [yolo] or [region] layers are the inputs of these layers, and the
    network's metadata says how boxes are decoded. The output of any other network is the result of
    its last layer.

    names: file with the names of the classes, one per line; by default the file beside the .cfg
    with the suffix .names. The default file may be absent.

    Raises InputError if a file cannot be read, ModelError if a file is damaged or the files do not
    match, and UnsupportedError for a section or option that gossamer does not compute. Messages
    about sections and options name the line.
    """
    net, *sections = read_sections(cfg)
    numbers = WeightsFile(weights)
    build = GraphBuilder(cfg.stem, file=str(cfg))
    network = DarknetNetwork(build, numbers, _input(build, net))
    for section in sections:
        network.layers.append(_CONVERTERS[section.kind](network, section))
    outputs = [head.layer for head in network.heads] or [network.layers[-1]]
    for layer in outputs:
        if layer.value == network.input.value:
            raise ModelError(f"{cfg}: computes nothing: its output is its input")
        build.output(layer.value, (None, layer.channels) if layer.flat else
                     (None, layer.channels, layer.height, layer.width))
    unknown = unknown_keys([net, *sections])
    build.graph.warnings += unknown
    build.graph.metadata = _metadata(build.graph, network, [net, *sections],
                                     names or cfg.with_suffix(".names"))
    numbers.finish(cfg, unknown)
    warn_of_broken_weights(build.graph)
    return build.finish()


def _input(build: GraphBuilder, net: Section) -> Layer:
    """Add the input, a picture or a vector of numbers, and return it."""
    if "inputs" in net.options and "height" not in net.options:
        count = net.integer("inputs")
        return Layer(build.input("numbers", (None, count)), count, flat=True)
    channels, height, width = (net.integer(key) for key in ("channels", "height", "width"))
    return Layer(build.input("image", (None, channels, height, width)), channels, height, width)


def _metadata(graph: Graph, network: DarknetNetwork, sections: list[Section],
              names_path: Path) -> ModelMetadata:
    """Return the metadata of the network, and warn of class names that do not match."""
    preprocessing = _preprocessing(network)
    if network.heads:
        detector, anchors = _detector_of(network.heads, _letterboxes(network, sections))
        names = _names(graph, names_path, detector.classes)
        return ModelMetadata(names, preprocessing=preprocessing, anchors=anchors,
                             detector=detector)
    last = network.layers[-1]
    # without names, a network of 1000 classes would get ImageNet's names, in an order that may
    # differ from the network's
    names = _names(graph, names_path, last.size) or (
        tuple(f"class {index}" for index in range(last.size))
        if last.flat and last.size <= _MOST_CLASSES else ())
    return ModelMetadata(names, preprocessing=preprocessing)


def _preprocessing(network: DarknetNetwork) -> Preprocessing | None:
    """Return the preprocessing of photos; None if the input cannot be a photo.

    Photos are RGB or grey with values from 0 to 1, stretched for a detector and cropped for other
    networks.
    """
    net_input = network.input
    if net_input.flat or net_input.channels not in (1, 3) or max(net_input.image) > LONGEST:
        return None
    return Preprocessing(net_input.image, None if network.heads else max(net_input.image),
                         "grey" if net_input.channels == 1 else "rgb", 1 / 255)


def _letterboxes(network: DarknetNetwork, sections: list[Section]) -> bool:
    """Return whether photos are letterboxed, so that they keep their proportions.

    The option letter_box of [net] determines the result. Without the option, photos are letterboxed
    unless the files show that the network was made for AlexeyAB's fork.
    """
    if "letter_box" in sections[0].options:
        return sections[0].flag("letter_box")
    return network.weights.revision == 0 and not any(
        ALEXEYAB_ONLY & section.options.keys() for section in sections)


def _names(graph: Graph, path: Path, classes: int) -> tuple[str, ...]:
    """Return the lines of a .names file.

    The result is empty if the file does not exist. It is also empty, with a warning, if the number
    of its lines is not `classes`.
    """
    if not path.is_file():
        return ()
    lines = path.read_bytes().decode("utf-8-sig", errors="replace").rstrip().splitlines()
    lines = without_blanks([line.strip() for line in lines], classes)
    if len(lines) != classes:
        graph.warnings.append(f"{path}: has {len(lines)} names, one per line, but the network has "
                              f"{classes} classes; the names are not used")
        return ()
    return tuple(lines)


def _yolo(network: DarknetNetwork, section: Section) -> Layer:
    """Make the input of a [yolo] layer an output of the network."""
    x = network.image_before(section)
    count = section.integer("num", 1)
    mask = section.integers("mask") or list(range(count))
    anchors = _anchors(section, count)
    if not all(0 <= index < len(anchors) for index in mask):
        raise section.error(f"mask is {section.text('mask')!r}, expected numbers from 0 to "
                            f"{len(anchors) - 1}", "mask")
    head = DetectionHead("yolo", tuple(mask), section.number("scale_x_y", 1.0, 0, 100),
                         section.flag("new_coords"))
    return _noted(network, section, x, head, anchors)


def _region(network: DarknetNetwork, section: Section) -> Layer:
    """Make the input of a [region] layer an output of the network.

    The anchors of the file are in units of cells.
    """
    x = network.image_before(section)
    section.refuse("background")
    if "tree" in section.options:
        raise section.unsupported("tree=... is not computed: it groups classes as a tree", "tree")
    if section.integer("coords", 4) != 4:
        raise section.unsupported(f"coords={section.text('coords')} is not supported; expected "
                                  "coords=4", "coords")
    count = section.integer("num", 1)
    cell = network.input.width / x.width, network.input.height / x.height
    anchors = tuple((width * cell[0], height * cell[1])
                    for width, height in _anchors(section, count)[:count])
    head = DetectionHead("region", tuple(range(count)), softmax=section.flag("softmax"))
    return _noted(network, section, x, head, anchors)


def _detector_of(heads: Sequence[Head], letterbox: bool) -> tuple[DetectorMetadata, Anchors]:
    """Return how outputs are decoded, with the anchors of all heads in one list.

    Raises ModelError if heads have different numbers of classes.
    """
    anchors: list[tuple[float, float]] = []
    shifted = []
    for head in heads:
        if head.classes != heads[0].classes:
            raise head.section.error(f"classes={head.classes} differs from the "
                                     f"{heads[0].classes} of line {heads[0].section.line}",
                                     "classes")
        start = 0
        if tuple(anchors[:len(head.anchors)]) != head.anchors:
            start = len(anchors)
            anchors += head.anchors
        shifted.append(replace(head.head, mask=tuple(start + index for index in head.head.mask)))
    first = heads[0].section
    kind = first.text("nms_kind", "default")
    detector = DetectorMetadata(
        tuple(shifted), heads[0].classes, "letterbox" if letterbox else "stretch",
        nms_kind=kind if kind in NMS_KINDS else "greedynms",
        beta_nms=first.number("beta_nms", 0.6, 0, 100))
    return detector, tuple(anchors)


def _anchors(section: Section, count: int) -> Anchors:
    """Return the anchors of a section; by default, anchors of 0.5 x 0.5 pixels or cells."""
    numbers = section.numbers("anchors") or [0.5] * (2 * count)
    if len(numbers) % 2 or len(numbers) < 2 * count:
        raise section.error(f"anchors has {len(numbers)} numbers, expected {2 * count} for "
                            f"num={count}", "anchors")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _noted(network: DarknetNetwork, section: Section, x: Layer, head: DetectionHead,
           anchors: Anchors) -> Layer:
    """Add a head to the network.

    Raises ModelError unless the head's input has as many channels as the head reads.
    """
    classes = section.integer("classes", 20)
    channels = len(head.mask) * (5 + classes)
    if x.channels != channels:
        raise section.error(f"reads {x.channels} channels, expected {channels}: {len(head.mask)} "
                            f"anchors of 4 numbers, 1 objectness and {classes} classes; set "
                            "filters of the layer before")
    network.heads.append(Head(x, head, anchors, classes, section))
    return replace(x, is_head=True)


_CONVERTERS: dict[str, Callable[[DarknetNetwork, Section], Layer]] = {
    "convolutional": layers.convolutional, "connected": layers.connected,
    "maxpool": layers.maxpool, "local_avgpool": layers.maxpool, "avgpool": layers.avgpool,
    "softmax": layers.softmax, "crop": layers.crop, "dropout": layers.unchanged,
    "cost": layers.unchanged, "empty": layers.unchanged, "silence": layers.unchanged,
    "activation": layers.activation, "batchnorm": layers.batchnorm,
    "route": layers.route, "shortcut": layers.shortcut,
    "scale_channels": layers.scaled, "sam": layers.scaled, "upsample": layers.upsample,
    "reorg": layers.reorg, "reorg3d": layers.reorg, "yolo": _yolo, "region": _region,
}
"""For each kind of section, the function that appends its layer."""
