"""An algorithm whose building does what its config says, for tests of processes that build."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.device import kernel_cache
from gossamer.device.base import Device, NeedsDeviceError
from gossamer.device.host import HostDevice
from gossamer.errors import CompileError
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.weights import Weights


class BuildableHost(HostDevice):
    """The host as a device that other processes build for."""

    @property
    def build_only(self) -> Callable[[], Device]:
        return BuildableHost


def no_device() -> Device:
    """Makes no device."""
    raise CompileError("no compiler is installed")


class AbsentDevice(BuildableHost):
    """A device for which other processes fail to start."""

    @property
    def build_only(self) -> Callable[[], Device]:
        return no_device


@dataclass(frozen=True)
class Nothing:
    """A problem without fields."""


class OddError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Scripted(Algorithm):
    """Packs a form named `twice`, and does what `do` says."""

    op, name = "scripted", "scripted"

    def supports(self, problem: Any, device: Device) -> str | None:
        return None

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        return [variant()]

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        config = dict(variant.config)
        weights.packed("twice", lambda arrays: 2 * arrays["weight"])
        weights.packed("environment", lambda arrays: np.array(
            [int(os.environ.get(name, 0)) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]))
        if config["do"] == "needs device":
            raise NeedsDeviceError("it runs a kernel")
        elif config["do"] == "fail":
            raise CompileError("register 7 is missing")
        elif config["do"] == "fail oddly":
            raise OddError("one", "two")
        elif config["do"] == "die":
            os.write(2, b"malloc(): out of luck\n")
            os.kill(os.getpid(), 9)
        return State(problem, variant, device)


class VendorScripted(Scripted):
    """The same by a vendor's library."""

    vendor = "cuBLAS"


AHEAD = ("what remember() keeps",)
"""The key under which `remember` keeps the name of a device."""


def remember(device: Device) -> None:
    """Keeps the name of a device, as a library's answer is kept."""
    kernel_cache.cached(AHEAD, device.name.encode)


def variant(do: str = "", **config: Any) -> Variant:
    """Returns a variant whose building does something."""
    return Variant((("do", do), *((key, str(value)) for key, value in config.items())), (), ())
