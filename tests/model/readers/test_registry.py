"""The table of readers decides which one reads a file, and which files it gets."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import gossamer
from gossamer.errors import InputError, ModelError
from gossamer.model.graph import Graph
from gossamer.model.load import expected_models
from gossamer.model.readers import registry
from gossamer.model.readers.registry import FurtherFile, Reader, reader_of, stem
from tests.cli.command_line import fails


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


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
CONTENTS = {
    "git lfs pull": LFS, "/resolve/": b"\n<!doctype HTML>\n<html lang='en'>",
    "export onnx": b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}', "--tflite": b"\x1c\0\0\0TFL3",
    "keras": b"\x89HDF\r\n\x1a\n\0", "name that file": b"\x18\0\0\0ORTM\0",
    "--graphdef": b"\x0a\x16\x0a\x01x\x12\x0bPlaceholder\x1a\x00", "ncnn": b"7767517\n2 2\n",
    "--prototxt": b'name: "net"\n# a comment\ninput: "data"\nlayer {\n  name: "conv1"\n',
    "OpenVINO": b'<?xml version="1.0"?>\n<net name="n" version="11">', "unpack it": b"PK\3\4\0",
    "skl2onnx": b"\x80\x04\x95"}
NAMES = {"torch.onnx.export": "n.pt n.PTH", "torch.export.load": "n.pt2", "--tflite": "n.tflite",
         "optimum-cli": "n.safetensors", "--saved-model": "saved_model.pb", "--graphdef": "n.pb",
         "keras": "n.h5 n.keras", "coremltools": "n.mlmodel n.mlpackage", "ncnn": "n.param n.bin",
         "--caffemodel": "n.caffemodel n.prototxt", "name that file": "n.ort"}
CFG = "[net]\nchannels=1\nheight=4\nwidth=4\n[avgpool]\n"


@pytest.mark.parametrize("help_", CONTENTS)
def test_kinds_by_content(help_: str, tmp_path: Path) -> None:
    (tmp_path / "n.cfg").write_text(CFG)
    for name in ("n.onnx", "n.weights", "m.cfg", "m", "m.dat"):
        path = tmp_path / name
        path.write_bytes(CONTENTS[help_])
        with pytest.raises((InputError, ModelError), match=help_) as caught:
            gossamer.load(tmp_path / "n.cfg" if name == "n.weights" else path)
        assert str(path) in str(caught.value)
    with pytest.raises(ModelError, match=help_):
        gossamer.load(CONTENTS[help_])


def test_a_saved_plan_is_no_network(tmp_path: Path) -> None:
    gossamer.compile("mobilenet_v2", "host").save(path := tmp_path / "x.plan")
    for verb in ("inspect", "compile"):
        assert f"{path}: is a saved plan; `gossamer run FILE.plan`" in fails(2, verb, path)


def test_kinds_by_name(tmp_path: Path) -> None:
    for help_, names in NAMES.items():
        for name in names.split():
            with pytest.raises(InputError, match=f"{name}: no such file"):
                gossamer.load(tmp_path / name)
            (tmp_path / name).touch()
            with pytest.raises(InputError, match=f"{name}: is a.*{help_}"):
                gossamer.load(tmp_path / name)
            assert help_ in fails(2, "inspect", tmp_path / name)
    (tmp_path / "folder" / "variables").mkdir(parents=True)
    (tmp_path / "folder" / "saved_model.pb").touch()
    assert "--saved-model" in fails(2, "convert", tmp_path / "folder", "-o", "n.onnx")


def test_kinds_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Linear(2, 2).eval(), torch.ones(1, 2)
    for what, save, saved in (
            ("weights or a pickled module", torch.save, module.state_dict()),
            ("TorchScript", torch.jit.save, torch.jit.trace(module, x)),
            ("a program of torch.export", torch.export.save, torch.export.export(module, (x,)))):
        save(saved, file := io.BytesIO())
        (tmp_path / "n.onnx").write_bytes(file.getvalue())
        with pytest.raises(ModelError, match=what):
            gossamer.load(tmp_path / "n.onnx")


def test_sections_are_checked_before_weights_are_asked_for(tmp_path: Path) -> None:
    for text, reason in (("[metadata]\nname = x\n", "section"), (CFG, "weights file is missing")):
        (tmp_path / "n.cfg").write_text(text)
        with pytest.raises((InputError, ModelError), match=reason):
            gossamer.load(tmp_path / "n.cfg")


def called(*functions: str) -> onnx.ModelProto:
    """Returns a model that calls the last of some functions."""
    return parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "d": 1]>\n'
        f"g (float[N, N] x) => (float[N, N] y) {{ y = d.f{len(functions) - 1}(x) }}\n" + "\n".join(
            f'<opset_import: ["": 17, "d": 1], domain: "d"> f{index} (a) => (c) {{ {body} }}'
            for index, body in enumerate(functions)))


TWICE = ["b = Relu(a) c = Relu(b)",
         *(f"b = d.f{index}(a) c = d.f{index}(b)" for index in range(40))]


@pytest.mark.parametrize(("proto", "reason"), [
    (called(*TWICE), "the limit is 16384"), (called("c = d.f0(a)"), "calls itself"),
    (called("c = Relu(a)", *(f"c = d.f{index}(a)" for index in range(150))), "100 functions"),
    *((called(f'c = Einsum <equation = "{equation}"> (a)'), "Einsum.*more dots")
      for equation in ("......ii", "...i...", "ii......->i", "i,....i"))])
def test_files_that_would_not_end(proto: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        gossamer.load(proto)


def test_functions_that_end() -> None:
    x = np.ones((1, 1), np.float32)
    for proto in (called(*TWICE[:8]), called('c = Einsum <equation = "...i->i..."> (a)')):
        assert gossamer.compile(proto, "host")(x) == x
