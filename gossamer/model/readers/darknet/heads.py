"""Converters of Darknet's detecting layers, which end the graph and say how boxes are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gossamer.model.detector_metadata import NMS_KINDS, DetectionHead, DetectorMetadata
from gossamer.model.readers.darknet.cfg import Section
from gossamer.model.readers.darknet.network import DarknetNetwork, Head, Layer

Anchors = tuple[tuple[float, float], ...]


def yolo(network: DarknetNetwork, section: Section) -> Layer:
    """Notes the input of a [yolo] layer as an output of the network."""
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


def region(network: DarknetNetwork, section: Section) -> Layer:
    """Notes the input of a [region] layer as an output of the network. The anchors of the file are
    in units of cells."""
    x = network.image_before(section)
    section.refuse("background")
    if "tree" in section.options:
        raise section.unsupported("tree=... is not computed: the classes form one group", "tree")
    if section.integer("coords", 4) != 4:
        raise section.unsupported(f"coords={section.text('coords')} is not computed, only 4",
                                  "coords")
    count = section.integer("num", 1)
    cell = network.input.width / x.width, network.input.height / x.height
    anchors = tuple((width * cell[0], height * cell[1])
                    for width, height in _anchors(section, count)[:count])
    head = DetectionHead("region", tuple(range(count)), softmax=section.flag("softmax"))
    return _noted(network, section, x, head, anchors)


def detector_of(heads: Sequence[Head], letterbox: bool) -> tuple[DetectorMetadata, Anchors]:
    """Returns how the network's outputs are decoded, with the anchors of all heads in one list.
    Raises ModelError where heads have different numbers of classes."""
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
    """Returns the anchors of a section; where it lists none, anchors of half a pixel or cell."""
    numbers = section.numbers("anchors") or [0.5] * (2 * count)
    if len(numbers) % 2 or len(numbers) < 2 * count:
        raise section.error(f"anchors has {len(numbers)} numbers, expected {2 * count} for "
                            f"num={count}", "anchors")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _noted(network: DarknetNetwork, section: Section, x: Layer, head: DetectionHead,
           anchors: Anchors) -> Layer:
    """Adds a head to the network. Raises ModelError where the head's input does not have the number
    of channels that the head reads."""
    classes = section.integer("classes", 20)
    channels = len(head.mask) * (5 + classes)
    if x.channels != channels:
        raise section.error(f"reads {x.channels} channels, expected {channels}: {len(head.mask)} "
                            f"anchors of 4 numbers, 1 objectness and {classes} classes; set "
                            "filters of the layer before")
    network.heads.append(Head(x, head, anchors, classes, section))
    return replace(x, is_head=True)
