"""Recognise how a network's outputs encode boxes, by its metadata or the shapes of outputs."""

from __future__ import annotations

from dataclasses import replace

from gossamer.detect.decoding import STRIDES, cells
from gossamer.errors import UnsupportedError
from gossamer.io.images import PRESETS, Preprocessing
from gossamer.io.text import shape_text
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.model.metadata import DetectionHead, DetectorMetadata

Shape = tuple[int, ...]

_ANCHORS = 3
"""Number of anchors per grid cell in YOLOv5 and YOLOv7."""


def recognise(graph: Graph) -> tuple[DetectorMetadata, Preprocessing]:
    """Return the encoding of boxes and the preprocessing of photos.

    A network without detector metadata is recognised as YOLOX, YOLOv5, YOLOv6 or YOLOv8 by the
    shapes of its outputs. The outputs of YOLOX and YOLOv6 have equal shapes; these networks are
    distinguished by the functions that compute the boxes. YOLOv5 may return its raw heads as
    additional outputs.

    Raises UnsupportedError for an unknown network, and for metadata that do not match the network.
    """
    if graph.tail is not None:
        raise UnsupportedError(f"{graph.file or graph.name}: the shapes of its outputs are "
                               "unknown, because ONNX Runtime computes its last nodes; export it "
                               "without box suppression (NMS), or load a float64 network with "
                               "precision='fp32'")
    static = resolve(graph, graph.batch_or(1))
    shapes = [static.shapes[info.name] for info in graph.outputs]
    size = _input_size(graph)
    detector = graph.metadata.detector
    if detector is not None:
        _check(graph, detector, shapes, size)
    else:
        detector = _by_shape(graph, shapes, size)
    preprocessing = graph.metadata.preprocessing or _PREPROCESSING[detector.heads[0].kind]
    if preprocessing.channels == "rgb" and graph.inputs[0].shape[1] == 1:
        preprocessing = replace(preprocessing, channels="grey")
    return detector, preprocessing


_PREPROCESSING = {
    "yolo": PRESETS["unit"], "region": PRESETS["unit"], "yolov5": PRESETS["unit"],
    "yolov8": PRESETS["unit"],
    "yolox": Preprocessing(channels="bgr"), "yolox_decoded": Preprocessing(channels="bgr"),
}
"""The default preprocessing by the kind of a network's heads."""


def _input_size(graph: Graph) -> tuple[int, int]:
    """Return the height and width of the input.

    Raises UnsupportedError if the input is not a single photo.
    """
    shape = graph.inputs[0].shape
    if len(graph.inputs) != 1 or len(shape) != 4 or shape[1] not in (1, 3):
        shapes = ", ".join(shape_text(info.shape) for info in graph.inputs)
        raise UnsupportedError(f"{graph.file or graph.name}: has inputs of shape {shapes}, "
                               "expected one photo of shape Nx3xHxW or Nx1xHxW")
    assert shape[2] is not None and shape[3] is not None
    return shape[2], shape[3]


def _by_shape(graph: Graph, shapes: list[Shape], size: tuple[int, int]) -> DetectorMetadata:
    shape, *others = shapes
    counts = [cells(size, strides) for strides in STRIDES]
    if len(shape) == 3 and not others and shape[1] in counts and shape[2] > 5:
        return DetectorMetadata((DetectionHead(_kind_of_cells(graph)),), shape[2] - 5)
    if len(shape) == 3 and not others and shape[2] in counts and shape[1] > 4:
        return DetectorMetadata((DetectionHead("yolov8"),), shape[1] - 4)
    if len(shape) == 3 and shape[1] in [_ANCHORS * count for count in counts] and (
            shape[2] > 5 and all(map(_is_raw_head, others))):
        return DetectorMetadata((DetectionHead("yolov5"),), shape[2] - 5)
    outputs = f"{graph.file or graph.name}: its outputs ({', '.join(map(shape_text, shapes))})"
    if all(map(_is_raw_head, shapes)):
        raise UnsupportedError(f"{outputs} are raw heads, but the file does not contain their "
                               "anchors; export the model with decoded boxes (YOLOv7: --grid)")
    raise UnsupportedError(
        f"{outputs} are not boxes that gossamer can decode: expected metadata with the key "
        "`detector`, as `gossamer convert` writes it, or YOLOX's output "
        f"(Nx{counts[0]}x(5+classes)), YOLOv5's (Nx{_ANCHORS * counts[0]}x(5+classes)) or YOLOv8's "
        f"(Nx(4+classes)x{counts[0]})")


def _is_raw_head(shape: Shape) -> bool:
    """Return whether a shape is (N, anchors, H, W, 5 + classes), a raw YOLOv5 head."""
    return len(shape) == 5 and shape[1] == _ANCHORS and shape[4] > 5


def _kind_of_cells(graph: Graph) -> str:
    """Return the kind of a head with one box per cell.

    The kind is determined by the functions after the last convolutions. A YOLOX network that
    decodes its boxes has an exponential there; one that does not has no function. A YOLOv6 network
    has only products or quotients, and its boxes are decoded like those of YOLOv5.
    """
    functions = _last_functions(graph)
    return ("yolox_decoded" if "exp" in functions else
            "yolov5" if functions & {"mul", "div"} else "yolox")


def _last_functions(graph: Graph) -> set[str]:
    """Return the functions between the last convolutions and the first output.

    Functions in the epilogues of the last convolutions are included.
    """
    functions = set[str]()
    makers = {name: node for node in graph.nodes for name in node.outputs}
    names, seen = [graph.outputs[0].name], set[str]()
    while names:
        node = makers.get(names.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        for key in ("expression", "epilogue"):
            if (expression := node.attributes.get(key)) is not None:
                functions |= {step.function for step in expression.steps}
        if node.op != "conv2d":
            names += node.inputs
    return functions


def _check(graph: Graph, detector: DetectorMetadata, shapes: list[Shape],
           size: tuple[int, int]) -> None:
    """Raise UnsupportedError if the output shapes do not match the metadata."""
    if len(shapes) != len(detector.heads):
        raise UnsupportedError(f"{graph.file or graph.name}: has {len(shapes)} outputs, but its "
                               f"metadata describe {len(detector.heads)} heads")
    counts = [cells(size, strides) for strides in STRIDES]
    for info, shape, head in zip(graph.outputs, shapes, detector.heads, strict=True):
        channels = len(head.mask) * (5 + detector.classes)
        fits = {"yolox": len(shape) == 3 and shape[1] in counts
                and shape[2] == 5 + detector.classes,
                "yolox_decoded": len(shape) == 3 and shape[2] == 5 + detector.classes,
                "yolov5": len(shape) == 3 and shape[2] == 5 + detector.classes,
                "yolov8": len(shape) == 3 and shape[1] == 4 + detector.classes,
                }.get(head.kind, len(shape) == 4 and shape[1] == channels)
        if not fits:
            raise UnsupportedError(f"{graph.file or graph.name}: output {info.name!r} has shape "
                                   f"{shape_text(shape)}, expected that of a {head.kind} head with "
                                   f"{len(head.mask)} anchors and {detector.classes} classes")
