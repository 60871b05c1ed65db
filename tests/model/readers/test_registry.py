"""The table of readers decides which one reads a file, and which files it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.model.load import expected_models
from gossamer.model.readers import registry
from gossamer.model.readers.registry import FurtherFile, Reader, reader_of, stem


def _paths(*files: Path) -> Graph:
    """A graph whose warnings are the files that it was read from."""
    return Graph("net", [], [], [], {}, warnings=[str(file) for file in files])


CAFFE = Reader("a Caffe network", (".prototxt",), _paths,
               (FurtherFile("weights", ".caffemodel"), FurtherFile("mean", ".mean")))
PACKED = Reader("a packed text", (".txt", ".zip.txt", ".zip.prototxt"), _paths)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a model of three; the table has readers that note their files."""
    monkeypatch.setattr(registry, "READERS", (*registry.READERS, CAFFE, PACKED))
    for name in ("net.v1.prototxt", "net.v1.caffemodel", "net.v1.mean", "other.caffemodel"):
        (tmp_path / name).touch()
    return tmp_path


def read(*files: Path) -> list[str]:
    return [Path(file).name for file in gossamer.load(*files).warnings]


def test_files_are_given_or_lie_beside_the_first(folder: Path) -> None:
    model, other = folder / "net.v1.prototxt", folder / "other.caffemodel"
    assert read(model) == ["net.v1.prototxt", "net.v1.caffemodel", "net.v1.mean"]
    assert read(model, other) == ["net.v1.prototxt", "other.caffemodel", "net.v1.mean"]
    assert read(model, other, other) == ["net.v1.prototxt", *["other.caffemodel"] * 2]


def test_a_wrong_number_of_files(folder: Path) -> None:
    model, other = folder / "net.v1.prototxt", folder / "other.caffemodel"
    with pytest.raises(InputError, match=r"net.v1.prototxt: 4 files are given, expected 3 for a "
                                         r"Caffe network; leave out .*other.caffemodel"):
        gossamer.load(model, other, other, other)
    (folder / "net.v1.mean").unlink()
    with pytest.raises(InputError, match=r"net.v1.prototxt: its mean file is missing: there is no "
                                         r".*net.v1.mean; put it there, or name it: "
                                         r"gossamer.load\('.*net.v1.prototxt', ..., "
                                         r"'FILE.mean'\)"):
        gossamer.load(model)
    for name in ("net.onnx", "mobilenet_v2"):
        with pytest.raises(InputError, match=f"{name}: .* leave out more"):
            gossamer.load(name, "more")


def test_a_file_that_is_none_of_the_first(folder: Path) -> None:
    with pytest.raises(InputError, match=r"expected an ONNX file \(.onnx or .onnx.gz\), .*, a "
                                         r"Caffe network \(.prototxt with its weights "
                                         r".caffemodel and mean .mean\), .*; .caffemodel holds the "
                                         r"weights of a Caffe network: name the .prototxt file "
                                         r"first"):
        gossamer.load(folder / "other.caffemodel")


def test_the_longest_suffix_counts(folder: Path) -> None:
    for name, reader, short in (("a.prototxt", CAFFE, "a"), ("A.ZIP.PROTOTXT", PACKED, "A"),
                                ("a.b.onnx.gz", registry.READERS[0], "a.b"),
                                ("a.ONNX", registry.READERS[0], "a"), ("a.pt", None, "a"),
                                ("onnx", None, "onnx")):
        assert reader_of(folder / name) is reader
        assert stem(folder / name) == short


def test_what_is_expected_names_every_kind_of_file() -> None:
    assert expected_models() == ("an ONNX file (.onnx or .onnx.gz), a Darknet network (.cfg with "
                                 "its weights .weights), or the name of a network of the zoo "
                                 "(mobilenet_v2, yolov4-tiny, yolov2-tiny)")
