"""The tuning cache: measurements on disk and in this process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.kernel_cache import cache_folder
from gossamer.measure import Timing
from gossamer.ops.algorithm import Problem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Measurement
from gossamer.plan.store import tuning_file
from gossamer.plan.store.database import Database, read
from gossamer.plan.store.keys import identity, problem_key
from gossamer.version import PACKAGE_VERSION


def tuning_folder() -> Path:
    """Return the folder of measurement files."""
    return cache_folder() / "tuning"


def exported(device: Device) -> bytes:
    """Return a device's measurements as a file that other machines can import.

    Empty if there are no measurements. Raises BadFile and OSError if the measurements cannot be
    read.
    """
    try:
        return tuning_file.text(read(tuning_folder() / file_name(device)))
    except FileNotFoundError:
        return b""


def take(device: Device, data: bytes) -> None:
    """Add measurements that exported() returned in another process.

    Raises BadFile if none of them were made with this device, driver, toolkit and gossamer.
    """
    if data:
        TuningCache(device).take(tuning_file.parse(data))


class TuningCache(Database):
    """The measurements made on one device, in one database.

    Other processes may read the database and add to it at the same time. Only one thread may use a
    TuningCache at a time.

    The database has one section for each combination of driver, toolkit and gossamer version with
    which measurements were made; this process uses only the section of its own combination. Added
    measurements are on disk when a method returns. Once measurements cannot be written, those of
    this process stay in memory.
    """

    def __init__(self, device: Device, folder: Path | None = None) -> None:
        self._owner = device
        self._others: dict[str, TuningCache] = {}
        super().__init__(
            (folder or tuning_folder()) / file_name(device), device.name,
            {"api": device.api, "description": device.description,
             "compute_units": device.limits.compute_units},
            {"driver": device.driver, "toolkit": device.toolkit, "gossamer": PACKAGE_VERSION})

    def of(self, device: Device) -> TuningCache:
        """Return the cache of a device; that of another device is in a file of the same folder."""
        if device.name == self._owner.name:
            return self
        return self._others.setdefault(device.name, TuningCache(device, self.path.parent))

    @property
    def notices(self) -> list[str]:
        """Messages for the user about the files of all devices."""
        return [line for cache in (self, *self._others.values()) for line in cache.messages]

    def get(self, problem: Problem) -> list[Measurement] | None:
        """Return a problem's measurements, in a fixed order.

        Only measurements by the current versions of the algorithms are returned; None if there are
        none.
        """
        lines = self.known.get(("candidates", problem_key(problem)), {}).values()
        sources = {name: _source(problem.op, name, self._owner)
                   for name in {line["algorithm"] for line in lines}}
        return sorted((tuning_file.decode(line) for line in lines
                       if line["source"] == sources[line["algorithm"]]),
                      key=lambda measured: measured.candidate_key) or None

    def put(self, measured: Mapping[Problem, Sequence[Measurement]]) -> None:
        """Add measurements that the current versions of the algorithms made.

        The measurements replace older ones of the same candidates. Raises ValueError for an
        algorithm that a problem's op does not have.
        """
        lines: dict[str, Any] = {}
        for problem, measurements in measured.items():
            key, described = problem_key(problem), f"{problem.op} {problem.describe()}"
            for measurement in measurements:
                source = _source(problem.op, measurement.algorithm, self._owner)
                if source is None:
                    raise ValueError(f"{problem.op} has no algorithm {measurement.algorithm}")
                lines[tuning_file.candidate_key(key, measurement)] = tuning_file.encode(
                    described, source, measurement)
        if lines:
            self.add("candidates", lines)

    def has_check(self, problem: Problem, measured: Measurement, weights: str) -> bool:
        """Return whether a candidate matched the reference with a layer's own constants.

        The measurement may have been made with the constants of another layer or network.

        weights: the digest of the layer's own constants.
        """
        return ("checks", self._check_key(problem, measured, weights)) in self.known

    def put_check(self, problem: Problem, measured: Measurement, weights: str) -> None:
        """Store that a candidate matched the reference; see has_check()."""
        self.add("checks", {self._check_key(problem, measured, weights):
                            f"{measured.algorithm} {problem.describe()}"})

    def _check_key(self, problem: Problem, measured: Measurement, weights: str) -> str:
        source = _source(problem.op, measured.algorithm, self._owner) or ""
        text = repr((problem_key(problem), measured.candidate_key, source, weights))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def get_plan(self, key: str) -> Timing | None:
        """Return the end-to-end time of a plan; None if the plan was not timed.

        key: identifies everything that the plan runs, including the sources of its algorithms.
        """
        lines = self.known.get(("plans", key))
        return None if lines is None else tuning_file.decode_plan(lines[key])

    def put_plans(self, timings: Mapping[str, tuple[str, Timing]]) -> None:
        """Add end-to-end times of plans, replacing equal keys.

        timings: for each key, a description for people who read the file, and the time.
        """
        if timings:
            self.add("plans", {
                key: tuning_file.encode_plan(*described) for key, described in timings.items()})


def file_name(device: Device) -> str:
    """Return the file name for a kind of device.

    An example is 'cuda-NVIDIA-H200-sm_90-1a2b3c4d.sqlite'.
    """
    identity = f"{device.api}\0{device.description}\0{device.limits.compute_units}"
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{device.api}-{device.description}")
    return f"{readable[:80].strip('-')}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.sqlite"


def _source(op: str, name: str, device: Device) -> str | None:
    """Return the identity of an algorithm on a device; None if the op has no such algorithm.

    The identity of a vendor's algorithm contains the library's version, so the library is loaded.
    """
    return next((identity(algorithm, device) for algorithm in OPS[op].algorithms
                 if algorithm.name == name), None)
