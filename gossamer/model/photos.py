"""Converts photos to arrays for a network's input: uint8 pixels or preprocessed float32 values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from gossamer.errors import InputError
from gossamer.io.images import Preprocessing, open_image
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.input_format import InputFormat

if TYPE_CHECKING:
    from gossamer.io.picture_batches import Form


def taking_photos(graph: Graph, prepare: Preprocessing) -> Graph:
    """Return the graph with a uint8 input, which the device normalises as `prepare` specifies.

    The graph is returned unchanged if no InputFormat computes the same numbers as `prepare`.
    """
    # If the metadata has a mean brightness, photos are prepared on the host: callers compare the
    # prepared numbers with this brightness to find photos with dark and light inverted.
    if len(graph.inputs[0].shape) != 4 or graph.metadata.brightness is not None:
        return graph
    try:
        return with_formats(graph, InputFormat.from_metadata(prepare), None)
    except InputError:  # `prepare` rounds, or has numbers that InputFormat does not support
        return graph


def as_taken(prepare: Preprocessing, info: ValueInfo,
             image: np.ndarray | Image.Image) -> np.ndarray:
    """Return one photo as an array for the input, without the batch axis.

    image: the photo as open_image() or load_image() returns it.
    """
    return batch_as_taken(prepare, info, [image])[0]


def batch_as_taken(prepare: Preprocessing, info: ValueInfo,
                   images: Sequence[np.ndarray | Image.Image]) -> np.ndarray:
    """Return a batch of photos as an array for the input.

    Raises InputError if the photos have different sizes.
    """
    given = info.given
    if given is not None and (given.changes_values or given.dtype == "uint8"):
        # the device normalises the pixels
        photos = prepare.pixel_batch(images).transpose(0, 3, 1, 2)
    else:
        photos = prepare.batch(images)
    if len(info.shape) == 2 and photos[0].size == info.shape[1]:
        photos = photos.reshape(len(photos), -1)
    return photos if given is None else given.arranged(photos)


@dataclass(frozen=True)
class PhotoReader:
    """Reads the photo in a file as an array for a network's input, without the batch axis.

    prepare: how photos are prepared.
    info: the network's input.
    """

    prepare: Preprocessing
    info: ValueInfo

    def form(self) -> Form | None:
        """Return the shape and the dtype of all photos; None if each photo keeps its size."""
        if self.prepare.size is None:
            return None
        photo = as_taken(self.prepare, self.info, Image.new("RGB", self.prepare.size[::-1]))
        return photo.shape, photo.dtype

    def __call__(self, file: str) -> np.ndarray | str:
        """Return the photo, or the reason why it cannot be read."""
        try:
            return as_taken(self.prepare, self.info, open_image(file))
        except InputError as error:
            return str(error).removeprefix(f"{file}: ")
