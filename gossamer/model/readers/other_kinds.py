"""Recognises files that gossamer does not read, and advises how to convert them."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_HEAD = 4096
"""Number of bytes at the beginning of a file that are inspected."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that gossamer does not read.

    what: the kind, as messages name it.
    advice: what to do instead, such as a command that converts the file.
    content: regular expression for the first bytes of such files; "" if no bytes identify the kind.
    suffixes: ends of the names of such files.
    member: regular expression for the name of a member, if such files are archives or folders.
    """

    what: str
    advice: str
    content: bytes = b""
    suffixes: tuple[str, ...] = ()
    member: str = ""


_EXPORT = "torch.onnx.export(module, (example,), 'model.onnx')"
_TO_ONNX = "python -m tf2onnx.convert {} --output model.onnx"

KINDS = (
    Kind("a saved plan", "`gossamer run FILE.plan` and gossamer.Plan.load('FILE.plan') load it; to "
         "compile, name the network that it was made from", member=r"plan\.json"),
    Kind("a Git LFS pointer, not the file itself", "git lfs pull fetches the file",
         rb"version https://git-lfs"),
    Kind("an HTML page, such as a site's page about a file",
         "download the file itself (on Hugging Face the link with /resolve/, on GitHub with /raw/)",
         rb"\s*(?:<!--.{0,2000}?-->\s*)?<(?i:!doctype html|html|head|body)\b"),
    Kind("a network of TorchScript", "torch.onnx.export(torch.jit.load('FILE'), (example,), "
         "'model.onnx', dynamo=False) writes it as ONNX", member=r".*/code/.*|.*/constants\.pkl"),
    Kind("a program of torch.export", "torch.onnx.export(torch.export.load('FILE'), "
         "f='model.onnx') writes it as ONNX",
         suffixes=(".pt2",), member=r"(.*/)?(serialized_exported_program|models/model)\.json"),
    Kind("a file of PyTorch, weights or a pickled module",
         f"load it into its module; gossamer.optimize(module.eval(), example) makes a fast module "
         f"of it, and {_EXPORT} an ONNX file; ultralytics: yolo export model=FILE format=onnx",
         rb"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19", (".pt", ".pth", ".ckpt"),
         r"(.*/)?data\.pkl"),
    Kind("a file with weights only (safetensors)",
         f"load it into its module and export that: {_EXPORT}, or for transformers: optimum-cli "
         "export onnx --model FOLDER OUTPUT", rb".{8}\{\s*\"", (".safetensors",)),
    Kind("a file with weights only, in the format of llama.cpp",
         "export the network that they were made from as ONNX", rb"GGUF", (".gguf",)),
    Kind("a network of Keras",
         "keras.models.load_model('FILE').export('model.onnx', format='onnx') writes it as ONNX",
         rb"\x89HDF\r\n\x1a\n", (".h5", ".hdf5", ".keras"), r"model\.weights\.h5"),
    Kind("a SavedModel of TensorFlow",
         f"{_TO_ONNX.format('--saved-model FOLDER')} writes it as ONNX",
         suffixes=("saved_model.pb",), member=r"saved_model\.pb(txt)?"),
    Kind("a frozen graph of TensorFlow", _TO_ONNX.format(
        "--graphdef FILE --inputs X:0 --outputs Y:0") + " writes it as ONNX",
         rb"\x0a.{1,4}?\x0a.{1,2}?[\w./-]+\x12.[A-Z]\w+[\x1a\x22\x2a]", (".pb",)),
    Kind("a network of TensorFlow Lite",
         f"{_TO_ONNX.format('--tflite FILE')} writes it as ONNX", rb".{4}TFL3", (".tflite",)),
    Kind("a network of ONNX Runtime's own format",
         "it was made from an ONNX file: name that file", rb".{4}ORTM", (".ort",)),
    Kind("a network of Core ML", "onnxmltools.convert_coreml(coremltools.utils.load_spec('FILE')) "
         "converts the older ones; export others as ONNX where they were trained",
         suffixes=(".mlmodel", ".mlpackage", ".mlmodelc"), member=r"Manifest\.json"),
    Kind("a network of Caffe", "python -m caffe2onnx.convert --prototxt FILE.prototxt --caffemodel "
         "FILE.caffemodel --onnx model.onnx writes it as ONNX",
         rb"(?:\s|#[^\n]*\n|\w+\s*:[^\n]*\n|input_shape\s*\{[^}]*\})*layers?\s*\{",
         (".caffemodel", ".prototxt")),
    Kind("a network of ncnn", "it was made from an ONNX or PyTorch file: name the ONNX file, or "
         "export the PyTorch file as ONNX", rb"7767517\s", (".param", ".ncnn.bin")),
    Kind("a network of OpenVINO", "it was made from another file: name the ONNX file, or export "
         "that file as ONNX", rb"\s*(?:<\?xml[^>]*>\s*)?<net\s+name=", (".xml",)),
    Kind("an engine of TensorRT, for one kind of GPU",
         "it was made from an ONNX file: name that file", rb"ptrt|ftrt", (".engine", ".trt")),
    Kind("a pickle of Python", "if it is a model of scikit-learn: skl2onnx.to_onnx(model, x) makes "
         "an ONNX model of it", rb"\x80[\x02-\x05]", (".pkl", ".pickle", ".joblib")),
    Kind("a file of weights, or of another kind", "name the file of the network: FILE.param of "
         "ncnn and FILE.xml of OpenVINO have their weights in FILE.bin, PyTorch in "
         "pytorch_model.bin", suffixes=(".bin",)),
    Kind("a ZIP archive", "unpack it and name the file of the network", rb"PK\x03\x04"),
)
"""The kinds, in the order in which they are tried."""


def by_name(path: Path) -> str | None:
    """Return the kind of a file or folder by its name, with advice; None if the kind is unknown."""
    return _first(lambda kind: bool(kind.suffixes) and path.name.lower().endswith(kind.suffixes))


def by_content(content: Path | bytes) -> str | None:
    """Return the kind of a file, a folder or the bytes of a file by its content, with advice.

    Returns None if the content does not identify the kind.
    """
    try:
        if isinstance(content, Path) and content.is_dir():
            return _of(b"", [each.name for each in content.iterdir()])
        if isinstance(content, Path) and not content.is_file():
            return None
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            head = file.read(_HEAD)
            return _of(head, _members(file) if head.startswith(b"PK\x03\x04") else ())
    except OSError:
        return None


def _of(head: bytes, members: Sequence[str]) -> str | None:
    return _first(lambda kind: bool(kind.content and re.match(kind.content, head, re.DOTALL))
                  or any(re.fullmatch(kind.member, member) for member in members if kind.member))


def _members(file: IO[bytes]) -> Sequence[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return ()


def _first(fits: Callable[[Kind], bool]) -> str | None:
    return next((f"is {kind.what}; {kind.advice}" for kind in KINDS if fits(kind)), None)
