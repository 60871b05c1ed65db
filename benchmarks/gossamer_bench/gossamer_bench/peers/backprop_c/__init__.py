"""Training in C on one core, or by OpenMP on several; the code is built when it is first used."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse

from gossamer_bench.peers import c_code

_MOST_LAYERS, _PADDED = 8, 16
"""The most layers of weights, and the number of floats in a vector, both as in work.h."""
_FOLDER = Path(__file__).parent


class _Shape(ctypes.Structure):
    """The struct Shape of work.h."""

    _fields_ = (("layers", ctypes.c_int), ("listed", ctypes.c_int), ("sizes", ctypes.c_void_p))


class _Work(ctypes.Structure):
    """The struct Work of work.h."""

    _fields_ = (("x", ctypes.c_void_p), ("starts", ctypes.c_void_p), ("indices", ctypes.c_void_p),
                ("values", ctypes.c_void_p), ("targets", ctypes.c_void_p),
                ("samples", ctypes.c_int), ("rate", ctypes.c_float))


class Lessons:
    """Training samples, in arrays that the C code reads.

    x: inputs (n, inputs) in float32.
    targets: wanted outputs (n, outputs) in float32.
    rate: learning rate.
    listed: whether each sample is a list of its nonzero inputs, so that the code skips all zeros.
    """

    def __init__(self, x: np.ndarray, targets: np.ndarray, rate: float,
                 listed: bool = False) -> None:
        self.listed, self._rate = listed, rate
        self._arrays = {"targets": np.ascontiguousarray(targets, np.float32)}
        if listed:
            rows = sparse.csr_matrix(x)
            self._arrays |= {"starts": rows.indptr.astype(np.int32),
                             "indices": rows.indices.astype(np.int32),
                             "values": rows.data.astype(np.float32)}
        else:
            self._arrays["x"] = np.pad(np.asarray(x, np.float32),
                                       ((0, 0), (0, -x.shape[1] % _PADDED)))

    def first(self, samples: int) -> _Work:
        """Returns the first samples as the struct that the C code reads."""
        return _Work(samples=samples, rate=self._rate,
                     **{name: array.ctypes.data for name, array in self._arrays.items()})


class CNetworks:
    """Networks in the memory of the C code.

    sizes: units of each layer, inputs first.
    parameters: parameters before training (networks, count) in float32.
    threads: number of threads. Where there is a single network, all threads train it together;
    several networks are distributed over the threads.
    Raises AbsentError where the code cannot be built, or MemoryError where memory or threads are
    missing.
    """

    def __init__(self, sizes: Sequence[int], parameters: np.ndarray, lessons: Lessons,
                 threads: int = 1) -> None:
        self._lessons, self._shape = lessons, parameters.shape
        self._sizes = np.array(sizes, np.int32)
        shape = _shape(self._sizes, lessons.listed)
        start = np.ascontiguousarray(parameters, np.float32)
        self._networks = ctypes.c_void_p(library().begin_networks(
            ctypes.byref(shape), _pointer(start), len(start), threads))
        if not self._networks:
            raise MemoryError("there is no memory for the networks in C")
        weakref.finalize(self, library().end_networks, self._networks)

    def train(self, samples: int) -> None:
        """Trains the networks on the first samples, from their present parameters."""
        if not library().train_networks(self._networks,
                                        ctypes.byref(self._lessons.first(samples))):
            raise MemoryError("OpenMP has fewer threads than were asked for")

    def parameters(self) -> np.ndarray:
        """Returns the present parameters (networks, count)."""
        result = np.empty(self._shape, np.float32)
        library().read_networks(self._networks, _pointer(result))
        return result


class PlainNetworks:
    """Networks that the C code trains by plain loops, with parameters as for CNetworks.

    together: whether the threads divide every loop over the single network; otherwise the networks
    are distributed over the threads.
    """

    def __init__(self, sizes: Sequence[int], parameters: np.ndarray, lessons: Lessons,
                 threads: int = 1, together: bool = False) -> None:
        assert not together or len(parameters) == 1
        self._lessons, self._sizes = lessons, np.array(sizes, np.int32)
        self._threads, self._together = threads, together
        self._parameters = (np.array(parameters, np.float32) if together
                            else self._transposed(parameters, by_input=True))

    def train(self, samples: int) -> None:
        """Trains the networks on the first samples, from their present parameters."""
        shape = ctypes.byref(_shape(self._sizes, listed=False))
        work = ctypes.byref(self._lessons.first(samples))
        memory, (count, size) = _pointer(self._parameters), self._parameters.shape
        trained = (library().train_together(shape, memory, self._threads, work) if self._together
                   else library().train_apart(shape, memory, count, size, self._threads, work))
        if not trained:
            raise MemoryError("memory, or threads of OpenMP, are missing for the networks in C")

    def parameters(self) -> np.ndarray:
        """Returns the present parameters (networks, count)."""
        return (self._parameters.copy() if self._together
                else self._transposed(self._parameters, by_input=False))

    def _transposed(self, parameters: np.ndarray, by_input: bool) -> np.ndarray:
        """Returns a copy with the weights of each layer transposed. by_input: whether the weights
        of the copy are stored input by input, else they are stored unit by unit."""
        result, start = np.array(parameters, np.float32), 0
        for before, units in pairwise(map(int, self._sizes)):
            end = start + units * before
            shape = (-1, units, before) if by_input else (-1, before, units)
            result[:, start:end] = parameters[:, start:end].reshape(shape).swapaxes(1, 2).reshape(
                len(result), -1)
            start = end + units
        return result


def _shape(sizes: np.ndarray, listed: bool) -> _Shape:
    assert len(sizes) <= _MOST_LAYERS + 1
    return _Shape(layers=len(sizes) - 1, listed=listed, sizes=sizes.ctypes.data)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@cache
def library() -> ctypes.CDLL:
    """Returns the C code. Raises AbsentError where it cannot be built."""
    code = c_code.library(_FOLDER)
    code.begin_networks.restype = ctypes.c_void_p
    for name in ("end_networks", "read_networks"):
        getattr(code, name).restype = None
    return code
