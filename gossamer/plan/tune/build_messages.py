"""The messages between a process that builds candidates and the process that started it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from gossamer.ops.weights import PackedArray


@dataclass(frozen=True)
class Request:
    """A candidate that shall be built.

    candidate: algorithm, problem and variant, pickled on their own, so that a class that the other
    process cannot import does not end the conversation. digest: hash of the layer's constants.
    layer: the layer's name. held: names of packed forms that need not be sent.
    """

    candidate: bytes
    digest: str
    layer: str
    held: frozenset[str]


@dataclass(frozen=True)
class Work:
    """Work on the device that shall be done: a function of the device, pickled on its own."""

    function: bytes


@dataclass(frozen=True)
class Ready:
    """The process has started and can build."""


@dataclass(frozen=True)
class WantsConstants:
    """The process lacks the constants of the layer that it was asked to build for; it is sent a
    dictionary of arrays."""


@dataclass(frozen=True)
class Built:
    """A candidate is built.

    forms: its packed forms by name, None for those that were held. seconds: processor seconds that
    all but packing took. kernels: the kernels that were built for it, as kernel_cache.hand_over
    returns them.
    """

    forms: Mapping[str, PackedArray | None]
    seconds: float
    kernels: Mapping[str, bytes | None]


@dataclass(frozen=True)
class Refused:
    """The process cannot build a candidate for a reason that does not hold where the device is."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The candidate cannot be built anywhere: the error that its building raised."""

    error: Exception


Reply = Ready | WantsConstants | Built | Refused | Failed
Constants = Mapping[str, np.ndarray]


def send(stream: IO[bytes], message: Any) -> None:
    """Writes a message. Raises OSError where the other process has ended."""
    # arrays are written from their own memory, without a copy of all bytes of the message
    pickle.dump(message, stream, protocol=5)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Reads a message. Raises EOFError, or UnpicklingError in the middle of a message, where the
    other process has ended."""
    return pickle.load(stream)
