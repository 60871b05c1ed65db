"""Checkpoints: files from which training continues as if uninterrupted."""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import GossamerWarning, InputError, cut, quoted
from gossamer.io import npy
from gossamer.io.output_files import replacing
from gossamer.io.text import shape_text
from gossamer.train.loop.settings import Settings, name
from gossamer.train.loop.train_state import Best, TrainState, Validation

_MAGIC = b"gossamer checkpoint 4\n"
"""The first bytes of a checkpoint file, with the version of the file format."""
_MAY_DIFFER = ("epochs", "target_error", "patience", "keep")
"""Settings that may differ between a checkpoint and the training that continues from it."""
_SHARE = 0.05
"""Maximum fraction of the elapsed time that is spent on writing checkpoints."""
_NONE = "is not a checkpoint of this version of gossamer"
_ANEW = "give another file, or omit resume to start from scratch"


class OtherSettings(InputError):
    """A checkpoint has other settings than the training that resumes it.

    key: name of the first setting that differs.
    there, here: JSON values of the setting in the file and in this training.
    """

    def __init__(self, path: Path, key: str, there: Any, here: Any) -> None:
        self.path, self.key, self.there, self.here = path, key, there, here
        super().__init__(f"{path}: is the checkpoint of a network with {cut(key)} "
                         f"{quoted(there)}, but this one has {quoted(here)}: give the same "
                         f"{cut(key)}; or {_ANEW}")


class Throttle:
    """Limits writing of checkpoints to a fraction of the time.

    Each checkpoint is written inside a `with` block of the throttle.
    """

    def __init__(self) -> None:
        self._start = self._due_time = 0.0

    @property
    def due(self) -> bool:
        """Whether the next checkpoint is due; the first is due at once."""
        return time.perf_counter() >= self._due_time

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter()
        self._due_time = now + (now - self._start) / _SHARE


class Checkpointer:
    """Writes a training state to its checkpoint file, and reads it.

    digest: hash of the training samples.
    Raises InputError if the path cannot be used for a checkpoint.
    """

    def __init__(self, path: Path, digest: str) -> None:
        if path.is_dir():
            raise InputError(f"checkpoint {path}: is a folder; expected a file")
        if not path.parent.is_dir():
            raise InputError(f"checkpoint {path}: there is no folder {path.parent}")
        if path.is_file() and not _is_one(path):
            raise InputError(f"{path}: {_NONE}: give another file")
        self.path = path
        self._digest = digest
        self._written: int | None = None
        self._failing = False

    def resume(self, settings: Settings) -> TrainState:
        """Return the state in the file, as load() does."""
        state = load(self.path, settings, self._digest)
        self._written = state.epochs_done
        return state

    def write(self, state: TrainState) -> None:
        """Write the state if it is newer than the file.

        If writing fails, the previous file is kept and training continues, with a warning for the
        first of several consecutive failures.
        """
        if state.epochs_done in (0, self._written):
            return
        try:
            save(self.path, state, self._digest)
        except InputError as error:
            if not self._failing:
                previous = ("no checkpoint is written" if self._written is None
                            else f"the checkpoint of epoch {self._written} is kept")
                warnings.warn(f"checkpoint of epoch {state.epochs_done}: {error}; {previous}; make "
                              "sure that the disk has free space", GossamerWarning, stacklevel=3)
            self._failing = True
        else:
            self._written, self._failing = state.epochs_done, False


def save(path: Path, state: TrainState, digest: str) -> None:
    """Write a checkpoint file atomically. Raises InputError if this fails."""
    header = {"settings": _plain(state.settings), "data": digest, "epochs_done": state.epochs_done,
              "trained_by": state.trained_by, "first": state.first,
              "rng": state.rng.bit_generator.state, "progress": [state.idle, state.least],
              "validation": state.validation and asdict(state.validation),
              "best": state.best and [state.best.epoch, asdict(state.best.validation)]}
    content = io.BytesIO()
    np.savez(content, header=np.frombuffer(json.dumps(header).encode(), np.uint8),
             parameters=state.parameters, curve=np.array(state.curve, np.float64),
             best=state.best.weights if state.best else np.empty(0, np.float32))
    data = content.getvalue()
    with replacing(path) as file:
        file.write(_MAGIC + hashlib.sha256(data).digest() + data)


def load(path: Path, settings: Settings, digest: str) -> TrainState:
    """Return the state in a checkpoint file.

    Raises InputError if the file is no checkpoint, belongs to other data, or has other settings
    (except those of _MAY_DIFFER).
    """
    with _checked(path):
        header, *arrays = _read(path)
        here = _plain(settings)
        for key, there in {**dict.fromkeys(here), **header["settings"]}.items():
            if here.get(key) != there:
                raise OtherSettings(path, key, there, here.get(key))
        if header["data"] != digest:
            raise InputError(f"{path}: is the checkpoint of training on other data: give the same "
                             f"samples, prepared in the same way; or {_ANEW}")
        return _state(settings, header, *arrays)


@contextmanager
def _checked(path: Path) -> Iterator[None]:
    """Turn errors of wrong content into an InputError.

    If gossamer did not write the file, the content may be wrong even if the hash is right.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
            ValueError) as error:
        raise InputError(f"{path}: the checkpoint has invalid content "
                         f"({npy.reason(error)}): {_ANEW}") from None


def _state(settings: Settings, header: dict[str, Any], parameters: np.ndarray,
           curve: np.ndarray, best_weights: np.ndarray) -> TrainState:
    """Return a checkpoint's training state.

    Raises ValueError, or another error that _checked() catches, if the content is invalid.
    """
    epochs, first = header["epochs_done"], header["first"]
    problem = settings.problem(0, 0)
    _check_array("parameters", parameters, problem.parameter_count)
    if type(epochs) is not int or epochs < 1 or curve.dtype != np.float64 or (
            curve.shape != (epochs,)):
        raise ValueError(f"a curve of {shape_text(curve.shape)} for {quoted(epochs)} epochs")
    if first is not None and type(first) is not float:
        raise ValueError(f"the first loss is {quoted(first)}")
    rng = np.random.default_rng(0)
    rng.bit_generator.state = header["rng"]
    validation = header["validation"] and _validation(header["validation"])
    best = None
    if header["best"]:
        epoch, done = header["best"]
        if type(epoch) is not int or not 1 <= epoch <= epochs:
            raise ValueError(f"the best epoch is {quoted(epoch)}")
        _check_array("weights of the best epoch", best_weights, problem.weight_count)
        best = Best(epoch, _validation(done), best_weights)
    idle, least = header["progress"]
    if type(idle) is not int or idle < 0 or type(least) is not float:
        raise ValueError(f"the progress is {quoted(header['progress'])}")
    device, algorithm = header["trained_by"]
    if type(device) is not str or type(algorithm) is not str:
        raise ValueError(f"it was trained by {quoted(header['trained_by'])}")
    return TrainState(settings, rng, parameters, epochs, curve.tolist(), first, validation, best,
                      idle, least, trained_by=(device, algorithm))


def _check_array(what: str, array: np.ndarray, count: int) -> None:
    if array.dtype != np.float32 or array.shape != (count,):
        raise ValueError(f"{what} are {shape_text(array.shape)} {array.dtype}, expected {count} "
                         "float32")


def _validation(values: Mapping[str, Any]) -> Validation:
    if any(type(value) is not float for value in values.values()):
        raise ValueError(f"the validation is {quoted(values)}")
    return Validation(**values)


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return a checkpoint's header, parameters, losses and best weights."""
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
    with npy.read_archive(io.BytesIO(data[length:]), str(path)) as arrays:
        header = json.loads(arrays.read("header").tobytes())
        return header, arrays.read("parameters"), arrays.read("curve"), arrays.read("best")


def _is_one(path: Path) -> bool:
    """Return whether a checkpoint may replace a file.

    True if the file is empty, or if it is a complete or truncated checkpoint of any version. Raises
    InputError if the file cannot be read, because it may not be a checkpoint.
    """
    kind = _MAGIC[:-2]
    try:
        with path.open("rb") as file:
            # a truncated file has a prefix of `kind`
            return kind.startswith(file.read(len(kind)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}), and may not be a "
                         "checkpoint: give another file, or remove it") from None


def _plain(settings: Settings) -> dict[str, Any]:
    """Return the settings without those of _MAY_DIFFER, as JSON values."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)
              if field.name not in _MAY_DIFFER}
    return {**values, "sizes": list(settings.sizes), "schedule": name(settings.schedule)}
