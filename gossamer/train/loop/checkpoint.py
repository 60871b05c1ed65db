"""Checkpoints: one file that training goes on from as if it had never stopped."""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import GossamerWarning, InputError
from gossamer.io.output_files import replacing
from gossamer.train.loop.schedule import name
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainState

_MAGIC = b"gossamer checkpoint 2\n"
_MAY_DIFFER = ("epochs", "target_error")
_SHARE = 0.05
"""Of the time, at most, that goes into writing checkpoints."""
_NONE = "is no checkpoint that this gossamer wrote"
_ANEW = "give another file, or leave resume out to begin anew"


class OtherSettings(InputError):
    """A checkpoint is of other settings than those given. key: which differs first; there, here:
    its plain values in the file and now."""

    def __init__(self, path: Path, key: str, there: Any, here: Any) -> None:
        self.path, self.key, self.there, self.here = path, key, there, here
        super().__init__(f"{path}: is the checkpoint of a network with {key} {there!r}, this one "
                         f"has {here!r}: give the same {key}; or {_ANEW}")


class Throttle:
    """How often checkpoints are written: `with throttle:` stands round what writes them."""

    def __init__(self) -> None:
        self._start = self._again = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for the next: the first at once, later ones so that writing takes
        little of the time."""
        return time.perf_counter() >= self._again

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter()
        self._again = now + (now - self._start) / _SHARE


class Checkpointer:
    """Writes a state to its checkpoint. digest: of what it is trained on.

    Raises InputError when the file could not be written: said before the work.
    """

    def __init__(self, path: Path, digest: str) -> None:
        if path.is_dir():
            raise InputError(f"checkpoint {path}: is a folder")
        if not path.parent.is_dir():
            raise InputError(f"checkpoint {path}: there is no folder {path.parent}")
        if path.is_file() and not _is_one(path):
            raise InputError(f"{path}: {_NONE}: give another file")
        self.path = path
        self._digest = digest
        self._written: int | None = None
        self._failing = False

    def resume(self, settings: Settings) -> TrainState:
        """The state that the file holds; see load()."""
        state = load(self.path, settings, self._digest)
        self._written = state.epochs_done
        return state

    def write(self, state: TrainState) -> None:
        """Replaces the file, unless it holds that epoch already or nothing was trained yet. Warns
        where that fails, once until it works again: the one before stays as it is, and the work
        goes on."""
        if state.epochs_done in (0, self._written):
            return
        try:
            save(self.path, state, self._digest)
        except InputError as error:
            if not self._failing:
                stays = ("there is none" if self._written is None
                         else f"that of epoch {self._written} stays")
                warnings.warn(f"checkpoint of epoch {state.epochs_done}: {error}; {stays}; make room "
                              "on that disk", GossamerWarning, stacklevel=3)
            self._failing = True
        else:
            self._written, self._failing = state.epochs_done, False


def save(path: Path, state: TrainState, digest: str) -> None:
    """Writes a file, whole or not at all. Raises InputError that names the path."""
    header = {"settings": _plain(state.settings), "data": digest, "epochs_done": state.epochs_done,
              "first": state.first, "rng": state.rng.bit_generator.state}
    content = io.BytesIO()
    np.savez(content, header=np.frombuffer(json.dumps(header).encode(), np.uint8),
             parameters=state.parameters, curve=np.array(state.curve, np.float64))
    data = content.getvalue()
    with replacing(path) as file:
        file.write(_MAGIC + hashlib.sha256(data).digest() + data)


def load(path: Path, settings: Settings, digest: str) -> TrainState:
    """The state in a file, which must be of the same settings (but for epochs and target_error)
    and data. Raises InputError that names the file, what is wrong and what to do."""
    header, parameters, curve = _read(path)
    here = _plain(settings)
    for key, value in header["settings"].items():
        if here.get(key) != value:
            raise OtherSettings(path, key, value, here.get(key))
    if header["data"] != digest:
        raise InputError(f"{path}: is the checkpoint of training on other data: give the same "
                         f"samples, prepared alike; or {_ANEW}")
    rng = np.random.default_rng(0)
    rng.bit_generator.state = header["rng"]
    return TrainState(settings, rng, parameters, header["epochs_done"], curve.tolist(), header["first"])


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no checkpoint to resume from: {_ANEW}") from None
    except OSError as error:
        raise InputError(f"{path}: the checkpoint cannot be read: "
                         f"{error.strerror or error}") from None
    if not data.startswith(_MAGIC):
        raise InputError(f"{path}: {_NONE}: {_ANEW}")
    data = data.removeprefix(_MAGIC)
    length = hashlib.sha256().digest_size
    if hashlib.sha256(data[length:]).digest() != data[:length]:
        raise InputError(f"{path}: the checkpoint is damaged or cut short: {_ANEW}")
    with np.load(io.BytesIO(data[length:])) as arrays:
        header = json.loads(arrays["header"].tobytes())
        return header, arrays["parameters"], arrays["curve"]


def _is_one(path: Path) -> bool:
    """Whether a file may be replaced by a checkpoint: of whatever version, whole or not; or empty.
    One that cannot be read is left to what writes to it."""
    kind = _MAGIC[:-2]
    try:
        with path.open("rb") as file:
            return kind.startswith(file.read(len(kind)))
    except OSError:
        return True


def _plain(settings: Settings) -> dict[str, Any]:
    """What must be the same, as JSON values."""
    found = {field.name: getattr(settings, field.name) for field in fields(settings)
             if field.name not in _MAY_DIFFER}
    return {**found, "sizes": list(settings.sizes), "schedule": name(settings.schedule)}
