"""A layer's constants and their packed forms on a device.

A packed form is an array computed from the constants, in the layout that one kernel needs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.facts import REAL, ValueFacts
from gossamer.ops import lru_cache


@dataclass(frozen=True)
class WeightsInfo:
    """Properties of weights on which the choice of algorithms may depend.

    Attributes
    ----------
    density : float
        Fraction of the weights that are nonzero, from 0 to 1.
    mask_hash : str
        Hash of the positions of the nonzero weights; empty if no weight is zero.
    facts : ValueFacts
        The value facts of the weights if they have few distinct values; else REAL.
    scaled_signs : bool
        Whether all weights of each output channel are c or -c, with one c > 0 per channel.
    dense_groups : float
        Fraction of the groups in which more than two of the four weights are nonzero; 0 for weights
        with 2:4 sparsity. A group holds the weights of four neighbouring input channels for one tap
        and one output channel.
    """

    density: float = 1.0
    mask_hash: str = ""
    facts: ValueFacts = REAL
    scaled_signs: bool = False
    dense_groups: float = 1.0


Pack = Callable[[Mapping[str, np.ndarray]], np.ndarray | Buffer]
"""A function that packs a layer's constants into an array or into device memory."""


class Weights:
    """A layer's constants and their packed forms on one device.

    A packed form exists as long as any object references the form's memory. The `State` of a
    prepared variant is such an object. Meanwhile, all callers that ask for the form share this
    memory.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        The constants by name, in the shapes that the problem states.
    device : Device
        The device that holds the packed forms.
    layer : str
        Name of the layer, for messages.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        The constants by name.
    layer : str
        Name of the layer.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], device: Device, layer: str = "") -> None:
        self.arrays = dict(arrays)
        self.layer = layer
        self._device = device
        self._packed: dict[str, weakref.ref[Buffer]] = {}
        self._lock = threading.Lock()

    def packed(self, key: str, pack: Pack) -> Buffer:
        """Return a packed form in device memory, packing it if it does not exist.

        Parameters
        ----------
        key : str
            Name of the form. Later calls with this name return the same memory as long as it
            exists.
        pack : callable
            Function that computes the form from `arrays`. It returns an array, which is uploaded,
            or a Buffer.

        Returns
        -------
        Buffer
            The device memory that holds the form.

        Raises
        ------
        OutOfMemoryError
            The device has no room for the form.
        """
        with self._lock:
            if key in self._packed and (kept := self._packed[key]()) is not None:
                return kept
            result = pack(self.arrays)
            buffer = result if isinstance(result, Buffer) else self._device.upload(
                np.ascontiguousarray(result), f"weights of {self.layer}")
            self._packed[key] = weakref.ref(buffer)
            return buffer

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of the constants, by `lru_cache.digest`."""
        return lru_cache.digest(self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory of all packed forms."""
        buffers = (kept() for kept in self._packed.values())
        return sum(buffer.nbytes for buffer in buffers if buffer is not None)


class WeightsStore:
    """The packed weights of a network's layers on all devices.

    The weights of a layer exist as long as anything references them. Meanwhile, all callers that
    ask for the layer's weights get the same object.

    Attributes
    ----------
    infos : dict of str to WeightsInfo
        Facts about the weights of each node, by the node's name.
    """

    def __init__(self) -> None:
        self.infos: dict[str, WeightsInfo] = {}
        self._weights: weakref.WeakValueDictionary[tuple[object, ...], Weights] = (
            weakref.WeakValueDictionary())
        self._lock = threading.Lock()

    def of(self, layer: str, arrays: Mapping[str, np.ndarray], device: Device,
           covers: tuple[str, ...] = ()) -> Weights:
        """Return the weights of a layer on a device.

        Parameters
        ----------
        layer : str
            Name of the layer, which is unique in the network.
        arrays : mapping of str to numpy.ndarray
            The layer's constants by name, the same at every call.
        device : Device
            The device that holds the packed forms.
        covers : tuple of str
            Names of the layers that a fusion or a part of the network covers; empty for a single
            layer. A fusion or part of the same name may cover different layers at different batch
            sizes.

        Returns
        -------
        Weights
            The weights: the same object at every call, as long as anything references it.
        """
        key = (layer, device.name, covers)
        with self._lock:
            weights = self._weights.get(key)
            if weights is None:
                weights = self._weights[key] = Weights(arrays, device, layer)
            return weights
