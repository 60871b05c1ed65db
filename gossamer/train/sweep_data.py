"""The samples of a sweep: checked once, split into folds, and scaled."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import ArrayError, InputError
from gossamer.io.limits import available_memory
from gossamer.train.data.samples import Samples, validation_samples
from gossamer.train.loop.settings import Settings, given_sizes
from gossamer.train.mlp import MLP
from gossamer.train.network_training import Split
from gossamer.train.training_data import digest_of, given_samples, trainable

_Form = tuple[int | None, int | None, str | None, str]
"""Key of samples that are read in the same way: the expected numbers of inputs and outputs, the
task, and the class weights as text."""

_Scaled = tuple[_Form, bool, bool, str, int]
"""Key of samples that are scaled and checked in the same way: the _Form, `standardise`,
`scale_targets`, the activation of the outputs, and the fold."""


class SweepData:
    """The samples of a sweep, shared by networks that need them read and scaled in the same way.

    splits: the samples of all networks so far.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, folds: int | None,
                 validation: tuple[Any, Any] | None) -> None:
        self._given = x, y, sample_weight
        self._folds, self._validation = folds, validation
        self._read: dict[_Form, tuple[Samples, list[np.ndarray]]] = {}
        self._scaled: dict[_Scaled, Samples] = {}
        self._indices: dict[tuple[int, int], int] = {}
        self._digests: dict[tuple[int, bool], str] = {}
        self.splits: list[Split] = []

    def of(self, mlp: MLP, device: Device) -> list[tuple[Settings, int]]:
        """Return the settings of an MLP and the index of its split, for each fold.

        Raises InputError if settings or samples are wrong.
        """
        sizes = given_sizes(mlp)
        form = (*((sizes[0], sizes[-1]) if sizes else (None, None)), mlp.task,
                repr(mlp.class_weight))
        if form not in self._read:
            x, y, sample_weight = self._given
            data = given_samples(mlp, x, y, sample_weight)
            self._read[form] = data, _rows_of_folds(data, self._folds)
        data, rows_of_folds = self._read[form]
        result = []
        for fold, rows in enumerate(rows_of_folds):
            settings = Settings.of(mlp, replace(data.shape, rows=len(rows)))
            # each fold has its own scaling, computed from the rows that its network is trained on
            is_scaled = settings.scales(data)
            key = (form, settings.standardise, settings.scale_targets,
                   settings.problem(0, 0).output_activation, fold if is_scaled else 0)
            if key not in self._scaled:
                self._scaled[key] = self._prepared(data, settings, device, is_scaled, rows)
            prepared = self._scaled[key]
            if (id(prepared), fold) not in self._indices:
                self._indices[id(prepared), fold] = len(self.splits)
                self.splits.append(Split(
                    prepared, rows, self._folds is not None, None if self._validation is None
                    else validation_samples(self._validation, settings.sizes, prepared, mlp.task)))
            result.append((settings, self._indices[id(prepared), fold]))
        return result

    def _prepared(self, data: Samples, settings: Settings, device: Device, is_scaled: bool,
                  rows: np.ndarray) -> Samples:
        needed, free = data.x.nbytes, available_memory()
        if is_scaled and settings.standardise and free is not None and needed > free:
            raise InputError(f"standardise: another copy of the samples takes {needed} bytes, but "
                             f"{free} bytes of memory are available; expected fewer samples or "
                             "folds")
        return trainable(settings, data, device, settings.scaling(
            data.rows(rows) if is_scaled and self._folds is not None else data))

    def digest(self, settings: Settings, index: int) -> str:
        """Return the hash of a network's samples, which its checkpoint records."""
        split, chooses = self.splits[index], settings.keep == "best"
        if (index, chooses) not in self._digests:
            self._digests[index, chooses] = digest_of(
                split.data, split.validation_data if chooses else None,
                split.rows if split.is_fold else None)
        return self._digests[index, chooses]

    @property
    def nbytes(self) -> int:
        """Bytes of the samples of all splits."""
        arrays = {id(array): array.nbytes for split in self.splits
                  for data in (split.data, split.validation_data) if data is not None
                  for array in (data.x, data.targets)}
        return sum(arrays.values())


def _rows_of_folds(data: Samples, folds: int | None) -> list[np.ndarray]:
    """Return, for each fold, the training rows: those outside of the fold.

    The classes are spread evenly over the folds. Without folds, a network is trained on all rows.
    """
    count = len(data.x)
    if folds is None:
        return [np.arange(count)]
    if count < 2:
        raise ArrayError("x has one sample: expected at least two, because each fold leaves some "
                         "out")
    if not isinstance(folds, Integral) or not 2 <= folds <= count:
        raise InputError(f"folds {folds!r}: expected a whole number from 2 to the {count} rows")
    by_class = np.arange(count) if data.labels is None else np.argsort(data.labels, kind="stable")
    fold_of_row = np.empty(count, np.intp)
    fold_of_row[by_class] = np.arange(count) % folds
    return [np.flatnonzero(fold_of_row != fold) for fold in range(folds)]
