"""What is read from idx files, .npz files and folders of many forms is recorded."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gossamer.train.data import idx_files, image_folders, npz_files, sources
from gossamer.train.data.columns import CellRules
from tests.recorded import Recorded
from tests.recorded.outcomes import outcome
from tests.train.dataset_texts import both_text, dataset_text


def _idx(shape: tuple[int, ...], kind: int = 8, first: int = 0) -> bytes:
    count = int(np.prod(shape))
    return (bytes((first, 0, kind, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
            + bytes(index * 7 % 251 for index in range(count)))


def test_idx_files(tmp_path: Path, recorded: Recorded) -> None:
    whole = {"images-idx3": _idx((2, 3, 2)), "labels-idx1": _idx((2,))}
    contents: dict[str, Mapping[str, bytes]] = {"whole": whole}
    for name, content in whole.items():
        for end in (*range(18), len(content) - 1):
            if end < len(content):
                contents[f"{name} cut to {end}"] = {**whole, name: content[:end]}
        contents[f"{name} longer"] = {**whole, name: content + b"\0"}
        for wrong in (_idx((2, 3, 2), 9), _idx((2, 3, 2), 8, 1), _idx((2, 2)), _idx((1, 2, 3, 2)),
                      _idx((3,)), _idx((1,)), _idx((0,)), _idx((0, 3, 2)), _idx((2, 0, 2)),
                      _idx((2, 2, 0)), _idx((3, 1, 1))):
            contents[f"{name} begins {wrong[:16].hex()}"] = {**whole, name: wrong}
    contents["empty"] = {"images-idx3": _idx((0, 3, 2)), "labels-idx1": _idx((0,))}
    found = {}
    for what, files in contents.items():
        for name, content in files.items():
            (tmp_path / f"a-{name}-ubyte").write_bytes(content)
        for limit in (None, 1, 2, 3) if what == "whole" else (None,):
            for name in whole if what == "whole" else ("images-idx3",):
                found[f"{what}, {name}, limit {limit}"] = outcome(
                    lambda name=name, limit=limit: idx_files.read(
                        tmp_path / f"a-{name}-ubyte", limit), hidden=tmp_path, text=dataset_text)
    recorded("idx_files", found)


def test_names_of_idx_files(tmp_path: Path, recorded: Recorded) -> None:
    found = {}
    for turn, (part, kind, ending) in enumerate(itertools.product(
            ("images", "labels", "IMAGES", "imagelabels", "both"),
            ("-idx3", ".idx1", "-idx3-ubyte", "-ubyte", ".idx", ".IDX", ".bin"), ("", ".gz"))):
        folder = tmp_path / str(turn)
        folder.mkdir()
        name = f"{part}{kind}{ending}"
        is_image = "label" not in name and "idx1" not in name
        (folder / name).write_bytes(_idx((2, 2, 1) if is_image else (2,)))
        other = (name.replace("images", "labels").replace("idx3", "idx1") if is_image
                 else name.replace("labels", "images").replace("idx1", "idx3"))
        partner = (other, other.removesuffix(".gz"), f"{other}.gz", "none")[turn % 4]
        if partner != name:
            (folder / partner).write_bytes(_idx((2,) if is_image else (2, 2, 1)))
        found[f"{name} with {partner}"] = " ".join([
            str(idx_files.is_named_so(name)), str(idx_files.holds_images(name)),
            outcome(lambda folder=folder, name=name: sources.load(folder / name), hidden=folder,
                    text=both_text)])
    recorded("idx_names", found)


def _arrays() -> dict[str, dict[str, Any]]:
    """Returns arrays of .npz files by a name: those of one file that is right, each time one of
    them another, or several."""
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 1, 0])
    grey = np.arange(256, dtype=np.uint8)[:4 * 64]
    others: dict[str, dict[str, Any]] = {"right": {}, "y 2-D": {"y": y[:, None]}}
    for index, array in enumerate((
            x[:, 0], x[:0], x[:, :0], x[:3], x.astype(bool), x.astype(complex), x.astype("U2"),
            x.astype(np.int8), np.float64(1e39) * x, np.where(x == 7, np.nan, x).astype(np.float32),
            np.where(x == 11, np.inf, x), grey.reshape(4, 8, 8), grey.reshape(4, 64),
            grey.reshape(4, 8, 8, 1), grey.reshape(4, 1, 8, 8), grey.reshape(4, 2, 4, 8),
            grey.reshape(4, 1, 1, 64), grey.reshape(4, 32, 2), grey[:128].reshape(4, 32) // 2,
            grey.reshape(4, 64) // 2, grey.reshape(4, 64).astype(np.float32),
            -grey.reshape(4, 64).astype(np.float32), 2.0 * grey.reshape(4, 64),
            grey[:196].reshape(4, 49), np.ones((4, 63)), np.zeros((4, 2, 2, 2, 2)),
            grey.reshape(4, 32, 2, 1), grey.reshape(4, 1, 4, 16), np.array(3.0),
            x.astype(object))):
        others[f"x {index}"] = {"x": array}
    for index, array in enumerate((
            y[:3], np.array(3), np.eye(4), y[:, None, None], y.astype(bool), y.astype("U1"),
            y.astype("S1"), y.astype(complex), y + 0.5, np.array([0.0, 1, np.nan, 2]),
            np.array([0, 1, np.inf, 2]), np.array([0, 1, 2, 9.3e18]), np.array([0, 1, 2, 9.2e18]),
            np.array([0, 1, 2, 2.0**63]), np.array([-2.0**63, 1, 2, 3]), np.array([0, 1e39, 1, 2]),
            np.array([3.4e38, -3.4e38, 1, 2]), y.astype(np.uint64) + np.uint64(2**63),
            y.astype(np.int8), y.astype(object), np.zeros((4, 2)))):
        others[f"y {index}"] = {"y": array}
    whole = {name: {"x": x, "y": y, **changed} for name, changed in others.items()}
    whole["no y"], whole["no x"], whole["none"] = {"x": x}, {"y": y}, {"z": x, "b": y}
    whole["test alone"] = {"x_test": x, "y_test": y}
    whole["both pairs"] = {"x": x, "y": y, "x_train": x, "y_train": y}
    whole["x and half a pair"] = {"x": x, "y": y, "x_train": x}
    for name, test in (("test", {"x_test": x[:2], "y_test": y[:2]}), ("x_test", {"x_test": x}),
                       ("y_test", {"y_test": y}), ("wrong", {"x_test": x[:2], "y_test": y[:1]})):
        whole[f"train and {name}"] = {"x_train": x, "y_train": y, **test}
        whole[f"plain and {name}"] = {"x": x, "y": y, **test}
    return whole


def test_npz_files(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "a.npz", {}
    for name, arrays in _arrays().items():
        np.savez(path, **arrays)
        for limit, numbers in itertools.product((None, 3), (False, True)):
            found[f"{name}, limit {limit}{', numbers' * numbers}"] = outcome(
                lambda limit=limit, numbers=numbers: npz_files.read(path, limit, numbers),
                hidden=tmp_path, text=both_text)
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(4))
    content = path.read_bytes()
    for end in (0, 1, 100, len(content) - 1):
        path.write_bytes(content[:end])
        # zipfile's words may differ between versions of Python
        text = outcome(lambda: npz_files.read(path, None), hidden=tmp_path, text=both_text)
        found[f"cut to {end}"] = text.partition(" (")[0]
    recorded("npz_files", found)


def _picture(folder: Path, name: str, shape: tuple[int, ...], level: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (level + np.arange(int(np.prod(shape))) % 9).astype(np.uint8).reshape(shape)
    Image.fromarray(pixels).save(folder / name)


def test_folders_of_pictures(tmp_path: Path, recorded: Recorded) -> None:
    found = {}
    for turn, classes in enumerate((
            ("0", "1"), ("7",), ("10", "9", "8"), ("a", "0"), ("01", "1"), ("-1", "1"),
            ("x", ".hidden", "__cache"), ("\u0663", "1"), ())):
        for counts in ((1, 1, 1), (1, 2, 3), (3, 1, 2), (2, 0, 1)):
            folder = tmp_path / f"{turn}-{counts[0]}{counts[1]}"
            folder.mkdir()
            for place, (name, count) in enumerate(zip(classes, counts, strict=False)):
                (folder / name).mkdir()
                for index in range(count):
                    odd = turn == 2 and counts == (3, 1, 2) and index == 2
                    _picture(folder / name, f"{index}{('.png', '.BMP')[index % 2]}",
                             (2, 3) if not odd else (3, 2), 20 * place + index)
                (folder / name / ".9.png").write_bytes(b"")
                (folder / name / "note.txt").write_text("")
            for limit in (None, 1, 2, 3, 4) if counts == (1, 2, 3) else (None,):
                found[f"{','.join(classes)} {counts} limit {limit}"] = outcome(
                    lambda folder=folder, limit=limit: image_folders.read(folder, limit),
                    hidden=folder, text=dataset_text)
    _picture(tmp_path / "colour" / "1", "a.png", (1, 2, 3), 9)
    _picture(tmp_path / "colour" / "1", "b.png", (1, 2), 9)
    found["colour"] = outcome(lambda: image_folders.read(tmp_path / "colour", None),
                              hidden=tmp_path, text=dataset_text)
    recorded("picture_folders", found)


NAMES = ("train.csv", "test.csv", "train.csv.gz", "val.csv", "latest.csv", "Training.csv",
         "values.csv", "train-images-idx3", "train-labels-idx1", "t10k-images-idx3.gz",
         "t10k-labels-idx1", ".train.csv", "train/", "test/", "other/", "val/", "x.csv")


def test_parts_of_folders(tmp_path: Path, recorded: Recorded) -> None:
    rng, found = np.random.default_rng(8), {}
    for case in range(250):
        folder = tmp_path / str(case)
        folder.mkdir()
        taken = sorted(rng.permutation(NAMES)[:rng.integers(0, 5)].tolist())
        for name in taken:
            (folder / name).mkdir() if name.endswith("/") else (folder / name).touch()
        found[" ".join([str(case), *taken])] = outcome(
            lambda folder=folder: [None if path is None else str(path)
                                   for path in sources.parts(folder)], hidden=folder).replace(
            f"'{folder}'", "itself")
    recorded("folder_parts", found)


def test_what_is_loaded(tmp_path: Path, recorded: Recorded) -> None:
    """Loads files of every format with every option, and folders with samples to test on."""
    table = "y,a,b\n0,1,x\n1,,q\n1,5,q\n"
    numbers = table.replace("x", "3").replace("q", "8").replace(",,", ",6,")
    packed = io.BytesIO()
    np.savez(packed, x=np.ones((3, 2)), y=np.array([1, 0, 1]))
    files = {"t.csv": table.encode(), "n.csv": numbers.encode(),
             "n.csv.gz": gzip.compress(numbers.encode(), mtime=0),
             "T.TSV": numbers.replace(",", "\t").encode(), "a.npz": packed.getvalue(),
             "b.bin": numbers.encode(), "images-idx3": _idx((2, 2, 1)), "labels-idx1": _idx((2,)),
             "images.bin": _idx((2, 2, 1)), "labels.bin": _idx((2,)),
             "both/train.csv": table.encode(), "both/test.csv": (table + "2,7,z\n").encode(),
             "one/train.csv": numbers.encode()}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    _picture(tmp_path / "pictures" / "3", "a.png", (2, 2), 5)
    found = {}
    rules = {"no": None, "mean": CellRules("mean"), "texts": CellRules(one_hot=True),
             "both": CellRules("median", one_hot=True)}
    for name, label, of_numbers, (rule, cells) in itertools.product(
            (*files, "both", "one", "pictures", "missing", "."), ("first", "last", "a"),
            (False, True), rules.items()):
        if name.startswith(("both/", "one/")):
            continue
        found[f"{name} {label}{' numbers' * of_numbers} {rule}"] = outcome(
            lambda name=name, label=label, of_numbers=of_numbers, cells=cells: sources.load(
                tmp_path / name, label=label, limit=2 if name == "n.csv" else None,
                numbers=of_numbers, cells=cells), hidden=tmp_path, text=both_text)
    recorded("loaded", found)
