"""Tests that the cache folder survives killed and concurrent compiles.

    python tools/soak.py --count 200 --seed 0

Each of three phases prints one line. The exit status is 1 if one of them finds an error.

kills: compiles are killed with SIGKILL, half of them at a random moment and half during a write. A
process that stores kernels is killed with each of them. After each kill, every file of the cache
folder must be valid and have all its earlier content. At the end, compiles must read the folder
without a notice of damage, and partial files must be gone.
at once: two compiles with one cache folder must not lose measurements of either.
export: measurements that are exported, imported into an empty folder and exported again must be an
identical file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import gossamer
from gossamer.device.registry import find
from gossamer.errors import DeviceError
from gossamer.io.output_files import PARTIAL
from gossamer.model.builder import GraphBuilder
from gossamer.model.onnx_writer import to_onnx
from gossamer.plan.candidate import counted
from gossamer.plan.store import database
from gossamer.plan.store.tuning_file import BadFile

ATTEMPTS = 3
"""Largest number of compiles per kill; some of them end before the kill."""
MOST_BATCH = 64
"""Largest batch size of the compiles that run at once."""
LEAST_PAIRS = 2
HOURS_AGO = 2 * 3600.0
DAMAGE = ("set aside", "corrupt", "damaged", "cannot be read", "cannot be written", "locked")
"""Words in notices about files of the cache that are damaged or cannot be used."""
STORE_KERNELS = """
import os, sys, time
from gossamer.device.kernel_cache import cached, forget
for number in range(int(sys.argv[1])):
    key = (str(number % 20),)
    forget(key)
    cached(key, lambda: os.urandom(50_000))
    time.sleep(0.005)
"""


COMPILE = """
import json, sys
import gossamer
from gossamer.plan.store.database import Database

added, add = [], Database.add

def record(base, kind, entries):
    if kind == "candidates":
        added.extend(entries)
    add(base, kind, entries)

Database.add = record
plan = gossamer.compile(sys.argv[1], sys.argv[2], effort="quick")
for batch in sys.argv[3].split(","):
    plan.context(int(batch))
print(json.dumps(added))
"""
"""Program that compiles, and prints the keys of the measurements that it adds."""


class Wrong(Exception):
    """The cache folder did not survive; the message has the reason."""


class Soak:
    """The test's phases, with their network, devices and random generator."""

    def __init__(self, folder: Path, devices: Sequence[str], seed: int) -> None:
        self.folder = folder
        self.devices = devices
        self.chance = random.Random(seed)
        self.model = folder / "small.onnx"
        write_network(self.model)

    def kills(self, count: int) -> str:
        """Kill compiles, and return a summary. Raises Wrong."""
        cache = self.folder / "killed"
        seconds = {device: self._duration(device) for device in self.devices}
        # each batch size has different problems, so that there is always more to measure
        batches = self.chance.sample(range(1, ATTEMPTS * count + 1), ATTEMPTS * count)
        known: dict[Path, set[str]] = {}
        seen: set[Path] = set()
        done = 0
        while done < count:
            if not batches:
                raise Wrong(f"{(ATTEMPTS - 1) * count} compiles ended before they were killed")
            device = self.devices[len(batches) % len(self.devices)]
            ended_after = self._killed(cache, device, batches.pop(), seconds[device])
            if ended_after is None:
                done += 1
            else:
                seconds[device] = ended_after
            seen |= partial_files(cache)
            try:
                now = candidates(cache)
                for path, held in known.items():
                    if lost := held - now.get(path, set()):
                        raise Wrong(f"{path.name} lost {counted(len(lost), 'candidate')}")
                check_kernels(cache)
            except Wrong as wrong:
                raise Wrong(f"after kill {done} ({device}): {wrong}") from None
            known = now
        self._read_again(cache, ATTEMPTS * count + 1)
        kept = sum(map(len, candidates(cache).values()))
        return (f"kills: {count} on {' and '.join(self.devices)}; {len(seen)} partial files were "
                f"left and removed, {kept} candidates were kept")

    def at_once(self, count: int) -> str:
        """Run pairs of concurrent compiles, and return a summary. Raises Wrong."""
        stored = 0
        for number in range(count):
            cache = self.folder / f"pair-{number}"
            device = self.devices[number % len(self.devices)]
            first, second, common = self.chance.sample(range(1, MOST_BATCH), 3)
            pair = [self._recording(cache, device, f"{batch},{common}")
                    for batch in (first, second)]
            added = {key for process in pair for key in self._finished(process, device)}
            held = {key for found in candidates(cache).values() for key in found}
            if lost := added - held:
                raise Wrong(f"pair {number + 1} ({device}, batch {first}, {second} and {common}): "
                            f"{counted(len(lost), 'candidate')} of {len(added)} were lost")
            if not self.compile(cache, device, f"{first},{second},{common}")["reused"]:
                raise Wrong(f"pair {number + 1} ({device}): no stored candidate was reused")
            stored += len(added)
        return f"at once: {counted(count, 'pair')}, {stored} candidates were kept"

    def moved(self) -> str:
        """Export, import and export measurements again; return a summary. Raises Wrong."""
        cache, other = self.folder / "killed", self.folder / "imported"
        size = 0
        for device in self.devices:
            first, second = (self.folder / f"{name}.json" for name in ("first", "second"))
            self._gossamer(cache, "cache", "export", first, "--device", device)
            self._gossamer(other, "cache", "import", first, "--device", device)
            self._gossamer(other, "cache", "export", second, "--device", device)
            if first.read_bytes() != second.read_bytes():
                raise Wrong(f"the measurements of {device} differ after an import")
            size += first.stat().st_size
        return f"export: {size} bytes of {' and '.join(self.devices)} are equal after an import"

    def compile(self, cache: Path, device: str, batch: str) -> dict[str, Any]:
        """Compile to the end, and return the JSON report. Raises Wrong."""
        return self._finished(self._start(cache, device, batch),  # type: ignore[no-any-return]
                              device)

    def _duration(self, device: str) -> float:
        """Return the seconds of a compile with an empty cache."""
        start = time.monotonic()
        self.compile(self.folder / f"empty-{device.replace(':', '-')}", device, "1")
        return time.monotonic() - start

    def _killed(self, cache: Path, device: str, batch: int, seconds: float) -> float | None:
        """Start a compile and kill it.

        It is killed at a random moment within `seconds`, or when it begins to write for the first
        or second time. Returns None; if the compile ended before the kill, its duration in seconds.
        """
        is_writing = self.chance.random() < 0.5
        moment = self.chance.uniform(0.3, 1.0) * seconds
        writings, delay = self.chance.randint(1, 2), self.chance.uniform(0, 0.003)
        start = time.monotonic()
        with self._kernels(cache), self._start(cache, device, str(batch),
                                               output=subprocess.DEVNULL) as process:
            before, seen = partial_files(cache / "tuning"), set()
            while process.poll() is None and (is_writing or time.monotonic() - start < moment):
                seen |= partial_files(cache / "tuning") - before
                if is_writing and len(seen) >= writings:
                    time.sleep(delay)
                    break
                time.sleep(0.0005 if is_writing else 0.01)
            ended = process.poll() is not None
            end_session(process)
        return time.monotonic() - start if ended else None

    def _read_again(self, cache: Path, batch: int) -> None:
        """Compile with the cache after all kills.

        Raises Wrong for a notice of damage, or if partial files remain.
        """
        for path in partial_files(cache):
            # partial kernels are kept for an hour, because another process may be writing them
            os.utime(path, (time.time() - HOURS_AGO,) * 2)
        for device in self.devices:
            described = self.compile(cache, device, str(batch))
            for notice in described["notices"]:
                if any(word in notice for word in DAMAGE):
                    raise Wrong(f"{device}: {notice}")
        subprocess.run([sys.executable, "-c", STORE_KERNELS, "1"], env=environment(cache),
                       check=True)
        if left := partial_files(cache):
            raise Wrong(f"{len(left)} partial files were not removed, such as {min(left)}")
        candidates(cache)
        check_kernels(cache)

    def _start(self, cache: Path, device: str, batch: str,
               output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gossamer", "compile", str(self.model), "--device", device,
             "--effort", "quick", "--batch", batch, "--json"], env=environment(cache), text=True,
            stdout=output, stderr=output, start_new_session=True)

    def _recording(self, cache: Path, device: str, batch: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", COMPILE, str(self.model), device, batch],
            env=environment(cache), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)

    def _finished(self, process: subprocess.Popen[str], device: str) -> Any:
        printed, errors = process.communicate()
        if process.returncode:
            raise Wrong(f"a compile on {device} ended with {process.returncode}: {errors.strip()}")
        return json.loads(printed)

    @contextmanager
    def _kernels(self, cache: Path) -> Iterator[None]:
        """Store kernels in another process, which is killed at the end."""
        with subprocess.Popen([sys.executable, "-c", STORE_KERNELS, "100000"],
                              env=environment(cache), start_new_session=True) as process:
            try:
                yield
            finally:
                end_session(process)

    def _gossamer(self, cache: Path, *words: object) -> None:
        done = subprocess.run([sys.executable, "-m", "gossamer", *map(str, words)],
                              env=environment(cache), capture_output=True, text=True)
        if done.returncode:
            raise Wrong(f"gossamer {' '.join(map(str, words))} ended with {done.returncode}: "
                        f"{done.stderr.strip()}")


def environment(cache: Path) -> dict[str, str]:
    """Return environment variables for a process with this cache folder.

    The process uses the same gossamer as this one.
    """
    root = Path(gossamer.__file__).parents[1]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "GOSSAMER_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(paths)}


def end_session(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def partial_files(cache: Path) -> frozenset[Path]:
    """Return the partial files, and the journals of databases."""
    return frozenset((*cache.rglob(f"{PARTIAL}*"), *cache.rglob("*-journal")))


def candidates(cache: Path) -> dict[Path, set[str]]:
    """Return the keys of the candidates in each file of measurements.

    Raises Wrong for a file that is damaged or was set aside.
    """
    found: dict[Path, set[str]] = {}
    for path in (cache / "tuning").glob("[!.]*"):
        if path.name.endswith("-journal"):
            continue
        if path.suffix != ".sqlite":
            raise Wrong(f"{path.name} was set aside")
        try:
            content = database.read(path)
        except FileNotFoundError:
            continue
        except BadFile as bad:
            raise Wrong(f"{path.name} {bad}") from None
        found[path] = keys(content)
    return found


def keys(content: Mapping[str, Any]) -> set[str]:
    """Return the keys of all candidates in a file of measurements."""
    return {key for section in content["sections"] for key in section["candidates"]}


def check_kernels(cache: Path) -> None:
    """Raise Wrong for a damaged kernel."""
    for path in (cache / "kernels").glob("[!.]*"):
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            raise Wrong(f"kernel {path.name} is damaged")


def write_network(path: Path) -> None:
    """Write an ONNX file of two convolutions and a matrix product."""
    random_numbers = np.random.default_rng(0)
    build = GraphBuilder("small", file="small")
    x, channels = build.input("x", (None, 3, 4, 4)), 3
    for name, count in (("first", 4), ("second", 5)):
        weight = random_numbers.standard_normal((count, channels, 3, 3), np.float32)
        x = build.apply("relu", build.conv2d(x, build.constant(f"{name}.weight", weight),
                                             pads=(1, 1, 1, 1), name=name), name=f"{name}.relu")
        channels = count
    matrix = random_numbers.standard_normal((channels, 6), np.float32)
    mean = build.reduce(x, "mean", (2, 3), keepdims=False, name="mean")
    build.output(build.gemm(mean, build.constant("last.weight", matrix), name="last"), (None, 6))
    path.write_bytes(to_onnx(build.finish()).SerializeToString())


def available() -> list[str]:
    """Return the default devices: the host, and opencl:0 if it exists."""
    try:
        return ["host", find("opencl:0").name]
    except DeviceError:
        return ["host"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=200, help="number of kills (default: 200)")
    parser.add_argument("--pairs", type=int, help="pairs of compiles at once (default: a tenth of "
                                                  f"--count, at least {LEAST_PAIRS})")
    parser.add_argument("--seed", type=int, default=0, help="seed of random choices (default: 0)")
    parser.add_argument("--device", action="append", metavar="NAME",
                        help="may be repeated (default: host, and opencl:0 if it exists)")
    options = parser.parse_args()
    if os.name != "posix":
        parser.error("this system lacks SIGKILL and process sessions, which the test needs")
    if options.count < 1:
        parser.error(f"--count {options.count}: expected 1 or more")
    pairs = options.pairs or max(LEAST_PAIRS, options.count // 10)
    with tempfile.TemporaryDirectory(prefix="gossamer-soak-") as name:
        soak = Soak(Path(name), options.device or available(), options.seed)
        phases: list[Callable[[], str]] = [lambda: soak.kills(options.count),
                                           lambda: soak.at_once(pairs), soak.moved]
        for phase in phases:
            try:
                print(phase(), flush=True)
            except Wrong as wrong:
                print(f"FAILED: {wrong}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
