"""Detector: detection of objects on photos with a network."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from gossamer.detect.decoding import Box, Grid, decode, join, suppress
from gossamer.detect.placement import STYLES, Placement, fitted, place
from gossamer.detect.recognition import recognise
from gossamer.device.base import Device
from gossamer.device.registry import names_several
from gossamer.errors import GossamerWarning, InputError, UnsupportedError, one_of
from gossamer.io.images import load_image
from gossamer.io.labels.reader import COCO, read_names, without_blanks
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import check_open_dimensions
from gossamer.model.load import load
from gossamer.model.metadata import RESIZES
from gossamer.plan.api import compile
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.plan.store.plan_file import SUFFIX


class Detector:
    """Find objects on photos.

    Parameters
    ----------
    model : str, Path, Graph or Plan
        A network that detects objects: any model that `gossamer.load` accepts, the file of a saved
        plan, a Graph, or a Plan. Supported are Darknet networks, ONNX files written by `gossamer
        convert`, and ONNX files of YOLOX, YOLOv5 and YOLOv8.
    device : str or Device, optional
        The device of the network; see `gossamer.compile`. Must be omitted for a Plan.
    names : sequence of str, optional
        Names of the classes. By default the network's own names, else the names of COCO if the
        network has 80 classes, else "class 0", "class 1" and so on.
    threshold : float, optional
        Minimum score of a box, from 0 to 1. By default the value in the network's metadata, else
        0.25.
    nms : float, optional
        Maximum overlap (intersection over union, from 0 to 1) of two boxes of a class. If they
        overlap more, the box of lower score is dropped. By default the value in the network's
        metadata, else 0.45.
    resize : {"stretch", "letterbox"}, optional
        How photos are resized to the network's input. By default the value in the network's
        metadata, else "letterbox".

    Attributes
    ----------
    plan : Plan
        The network on its device.
    names : list of str
        Names of the classes.
    threshold, nms, resize
        The parameters of the same names, or their defaults.

    Raises
    ------
    InputError
        An argument is wrong.
    ModelError
        The network cannot be read.
    UnsupportedError
        The network's outputs are not boxes that gossamer can decode.

    Examples
    --------
    >>> detector = gossamer.Detector("yolov4-tiny")
    >>> for box in detector("bus.jpg"):
    ...     print(box.name, box.score, box.left, box.top, box.right, box.bottom)
    """

    def __init__(self, model: str | Path | Graph | Plan, device: str | Device | None = None, *,
                 names: Sequence[str] | None = None, threshold: float | None = None,
                 nms: float | None = None, resize: str | None = None) -> None:
        self.plan = _plan(model, device)
        graph = self.plan.graph
        self._metadata, self._preprocessing = recognise(graph)
        self.threshold = self._metadata.threshold if threshold is None else threshold
        self.nms = self._metadata.nms if nms is None else nms
        self.resize = self._metadata.resize if resize is None else resize
        for option, number in (("threshold", self.threshold), ("nms", self.nms)):
            if not 0 <= number <= 1:
                raise InputError(f"{option} {number:g}: expected a number from 0 to 1")
        if self.resize not in RESIZES:
            raise InputError(f"resize {self.resize}: {one_of(self.resize, RESIZES)}")
        self.names = self._names(names)
        _, _, height, width = graph.inputs[0].shape
        assert height is not None and width is not None
        self._size = (height, width)
        self._style = STYLES[self._metadata.heads[0].kind]

    def __call__(self, image: str | Path | np.ndarray) -> list[Box]:
        """Find the objects on a photo.

        Parameters
        ----------
        image : str, Path or array of uint8, shape (height, width, 3)
            A file name, or a photo in RGB.

        Returns
        -------
        list of Box
            The objects, in descending order of score.

        Raises
        ------
        InputError
            The file cannot be read, or the array has another dtype or shape.
        """
        return self.detect([load_image(image) if isinstance(image, str | Path) else image])[0]

    def detect(self, images: Sequence[np.ndarray]) -> list[list[Box]]:
        """Find the objects on several photos in one batch.

        Parameters
        ----------
        images : sequence of arrays of uint8, shape (height, width, 3)
            The photos, in RGB, of any sizes.

        Returns
        -------
        list of list of Box
            The objects of each photo, in descending order of score.

        Raises
        ------
        InputError
            An array has another dtype or shape.
        """
        if not images:
            return []
        batch, placements = self.prepare(images)
        outputs = self.plan(batch)
        return self.decode(outputs if isinstance(outputs, tuple) else (outputs,), placements)

    def prepare(self, images: Sequence[np.ndarray]) -> tuple[np.ndarray, list[Placement]]:
        """Convert photos to the network's input.

        Parameters
        ----------
        images : sequence of arrays of uint8, shape (height, width, 3)
            The photos, in RGB, of any sizes.

        Returns
        -------
        batch : array
            The input: float32 of shape (N, channels, height, width), or an array in the plan's
            InputFormat. If the plan expects uint8, the resized photos are rounded.
        placements : list of Placement
            The position of each photo in the input, for `decode`.

        Raises
        ------
        InputError
            An array has another dtype or shape.
        """
        batch, placements = [], []
        for image in images:
            if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
                raise InputError(f"a photo has dtype {image.dtype} and shape {image.shape}, "
                                 "expected uint8 and (height, width, 3)")
            placement = place((image.shape[0], image.shape[1]), self._size, self.resize,
                              self._style)
            if self._preprocessing.channels == "grey":
                image = np.asarray(Image.fromarray(image).convert("L"))
            values = fitted(image, placement, self._size, self._style)
            batch.append(self._prepared(values))
            placements.append(placement)
        given = self.plan.graph.inputs[0].given
        return np.stack(batch) if given is None else given.arranged(np.stack(batch)), placements

    def _prepared(self, values: np.ndarray) -> np.ndarray:
        """Return a resized photo as an array (channels, height, width).

        The photo is normalised here, unless the plan normalises its input.
        """
        given = self.plan.graph.inputs[0].given
        if given is None or not (given.changes_values or given.dtype == "uint8"):
            return self._preprocessing.normalised(values)
        raw = replace(self._preprocessing, scale=1.0, mean=(0.0,), std=(1.0,))
        return np.rint(raw.normalised(values)) if given.dtype == "uint8" else raw.normalised(values)

    def decode(self, outputs: Sequence[np.ndarray],
               placements: Sequence[Placement]) -> list[list[Box]]:
        """Decode the network's outputs to boxes.

        Parameters
        ----------
        outputs : sequence of arrays
            The network's outputs, with the photos along axis 0.
        placements : sequence of Placement
            The position of each photo in the input.

        Returns
        -------
        list of list of Box
            The objects of each photo, in descending order of score.
        """
        # a network may return its raw heads after the decoded boxes
        outputs = [np.asarray(output, np.float32)
                   for output in outputs[:len(self._metadata.heads)]]
        if not all(np.isfinite(output).all() for output in outputs):
            warnings.warn("the network's outputs contain NaN or infinite values; boxes with such "
                          "values are dropped", GossamerWarning, stacklevel=2)
        return [self._boxes([output[index] for output in outputs], placement)
                for index, placement in enumerate(placements)]

    def _boxes(self, outputs: list[np.ndarray], placement: Placement) -> list[Box]:
        """Return the boxes of one photo."""
        metadata = self._metadata
        anchors = np.array(self.plan.graph.metadata.anchors, np.float64).reshape(-1, 2)
        found = join([
            decode(head, output, Grid(self._size, anchors[list(head.mask)], metadata.classes),
                   self.threshold)
            for head, output in zip(metadata.heads, outputs, strict=True)])
        kept = suppress(found, self.nms, metadata.nms_kind, metadata.beta_nms)
        edges = placement.to_photo(found.boxes[kept])
        return [Box(self.names[class_index], int(class_index), float(score), *map(float, box))
                for class_index, score, box in zip(found.classes[kept], found.scores[kept], edges,
                                                   strict=True)]

    def _names(self, names: Sequence[str] | None) -> list[str]:
        count = self._metadata.classes
        if names is not None:
            names = without_blanks(names, count)
            if len(names) != count:
                raise InputError(f"got {len(names)} class names, but the network has {count} "
                                 "classes")
            return names
        graph = self.plan.graph
        own = graph.metadata.classes
        if len(own) == count:
            return list(own)
        if own:
            raise UnsupportedError(
                f"{graph.file or graph.name}: names {len(own)} classes, but its output has "
                f"{count} numbers per box in addition to the position; key points, masks and "
                f"angles cannot be decoded; if the numbers are classes, pass {count} class names")
        return read_names(COCO) if count == 80 else [f"class {index}" for index in range(count)]


def _plan(model: str | Path | Graph | Plan, device: str | Device | None) -> Plan:
    """Return the plan of a network."""
    if names_several(device) or isinstance(model, PlanGroup):
        raise InputError("a detector runs on one device; create one detector for each device")
    if isinstance(model, Plan):
        if device is not None:
            raise InputError(f"device {device}: a plan already has a device; omit device")
        return model
    if not isinstance(model, Graph) and str(model).endswith(SUFFIX):
        return Plan.load(model, device)
    # Boxes do not need float64. Without a precision, float64 nodes would be left to ONNX Runtime.
    graph = load(model if isinstance(model, Graph) else str(model), precision="fp32")
    check_open_dimensions(graph)
    return compile(graph, device)
