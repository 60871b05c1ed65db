"""READERS: the table of the kinds of model files and their readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.errors import InputError
from gossamer.model.graph import Graph

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class FurtherFile:
    """A file that a model needs in addition to its first file.

    content: name of the file's content, for messages: "weights".
    suffix: end of the file's name. By default, the file is looked up in the folder of the first
    file, under the first file's name with this suffix in place of the first file's suffix.
    """

    content: str
    suffix: str


@dataclass(frozen=True)
class Reader:
    """A kind of model file, with the functions that read it.

    kind: name of the kind with its article, for messages: "an ONNX file".
    suffixes: ends of the names of such files, in lower case.
    read: function that returns the graph. Its arguments are the path of the file and the paths of
    the further files, in the order of `further`. The function imports the reader's module when it
    is called, so that only readers in use are imported. Its errors are InputError, ModelError and
    UnsupportedError, which name the file.
    further: the other files of a model.
    read_onnx: function that returns the file at a path as an ONNX model with all its weights, for
    programs that change weights and write the model again; None for kinds of files that are not
    ONNX.
    """

    kind: str
    suffixes: tuple[str, ...]
    read: Callable[..., Graph]
    further: tuple[FurtherFile, ...] = ()
    chooses_outputs: bool = False
    """Whether `read` accepts the argument `outputs`: the names of the outputs to read, or None for
    all outputs. Nodes that only other outputs need are then skipped."""
    read_onnx: Callable[[Path], onnx.ModelProto] | None = None
    check: Callable[[Path], object] | None = None
    """Function that reads only the first file, and raises the errors that `read` would raise for
    this file. The function is called if a further file is missing, so that an error in the first
    file is reported first."""

    @property
    def description(self) -> str:
        """The kind and its suffixes, for messages."""
        further = " and ".join(f"{file.content} {file.suffix}" for file in self.further)
        return (f"{self.kind} ({' or '.join(self.suffixes)}"
                f"{f' with its {further}' if further else ''})")

    def files(self, path: Path, further: Sequence[Path]) -> list[Path]:
        """Return all files of a model.

        Further files that are not given are looked up beside the first. Raises InputError for too
        many files, or for a missing further file; if the first file is missing, the reader raises
        the error.
        """
        if len(further) > len(self.further):
            count = 1 + len(self.further)
            raise InputError(f"{path}: {1 + len(further)} files are given, expected {count} for "
                             f"{self.kind}; leave out {further[len(self.further)]}")
        files = [path, *further]
        for index, file in enumerate(self.further[len(further):], len(further)):
            beside = path.with_name(stem(path) + file.suffix)
            if not beside.is_file() and path.exists():
                if self.check is not None:
                    self.check(path)
                before = "..., " if index else ""
                option = (f"--weights FILE{file.suffix}, or in Python "
                          if file.content == "weights" and len(self.further) == 1 else "")
                raise InputError(f"{path}: its {file.content} file is missing: there is no "
                                 f"{beside}; put it there, or name it: {option}"
                                 f"gossamer.load({str(path)!r}, {before}'FILE{file.suffix}')")
            files.append(beside)
        return files


def _onnx_graph(path: Path, outputs: Sequence[str] | None = None, *,
                narrows: bool = False) -> Graph:
    from gossamer.model.readers.onnx.reader import load_onnx

    return load_onnx(path, outputs, narrows=narrows)


def _onnx_model(path: Path) -> onnx.ModelProto:
    from gossamer.model.readers.onnx.reader import read_model

    return read_model(path)


def _darknet_graph(cfg: Path, weights: Path) -> Graph:
    from gossamer.model.readers.darknet.reader import load_darknet

    return load_darknet(cfg, weights)


def _check_darknet(cfg: Path) -> None:
    from gossamer.model.readers.darknet.cfg import read_sections

    read_sections(cfg)


READERS: tuple[Reader, ...] = (
    Reader("an ONNX file", (".onnx", ".onnx.gz"), _onnx_graph, chooses_outputs=True,
           read_onnx=_onnx_model),
    Reader("a Darknet network", (".cfg",), _darknet_graph, (FurtherFile("weights", ".weights"),),
           check=_check_darknet),
)
"""All kinds of model files. If several suffixes match a name, the longest suffix is used."""


def reader_of(path: str | Path) -> Reader | None:
    """Return the reader of a file by its suffix, ignoring case; None if there is no such reader."""
    name = str(path).lower()
    fitting = [(len(suffix), reader) for reader in READERS for suffix in reader.suffixes
               if name.endswith(suffix)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def stem(path: Path) -> str:
    """Return a file's name without the suffix of its reader."""
    reader = reader_of(path)
    if reader is None:
        return path.stem
    suffix = max((suffix for suffix in reader.suffixes if path.name.lower().endswith(suffix)),
                 key=len)
    return path.name[:-len(suffix)]


def descriptions() -> str:
    """Return the kinds of model files with their suffixes, for messages and help."""
    return ", ".join(reader.description for reader in READERS)
