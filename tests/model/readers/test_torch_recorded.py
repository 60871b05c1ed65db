"""The reader of torch's files is recorded for tensors, pickles and containers at their bounds."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from gossamer.errors import ModelError
from gossamer.model.readers.torch.state_dict import read_tensors
from gossamer.model.readers.torch.unpickle import MalformedPickle, Name, load
from tests.model import torch_files as torch
from tests.recorded import Recorded, as_text, digest
from tests.recorded.graphs import outcome

Pickle = bytes
DATA = np.arange(12, dtype=np.float32)


def tensors_text(path: Path) -> str:
    """Returns each tensor of a file with its values."""
    return " ".join(f"{name}={array.dtype}{list(array.shape)}"
                    f"{array.reshape(-1)[:12].tolist() if array.size < 40 else as_text(array)}"
                    for name, array in read_tensors(path).items())


class Files:
    """Writes files, and collects what the reader makes of each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "f.pth"
        self.found: dict[str, str] = {}

    def add(self, case: str, content: bytes) -> str:
        self.path.write_bytes(content)
        self.found[case] = outcome(lambda: tensors_text(self.path), self.path.parent, 200)
        return self.found[case]

    def both(self, case: str, content: Pickle, storages: Mapping[str, bytes],
             count: int = 12) -> None:
        self.add(f"zip {case}", torch.zip_file(content, dict(storages)))
        self.add(f"legacy {case}", torch.legacy_file(
            content, {key: (count, data) for key, data in storages.items()}))


def _named(tensor: Pickle) -> Pickle:
    return torch.mapping({"w": tensor})


def test_tensors(tmp_path: Path, recorded: Recorded) -> None:
    files = Files(tmp_path)
    floats = torch.storage("0", 12)
    grid = itertools.chain(
        itertools.product((0, 1, 2, 3), ((2, 5), (3, 4), (12,), (11,), (10,)), ((5, 1), (4, 1),
                                                                                (1,))),
        ((0, shape, strides) for shape, strides in (
            ((), ()), ((0,), (1,)), ((0, 5), (9, 9)), ((13,), (0,)), ((12,), (0,)), ((3, 4), (1,
                                                                                              3)),
            ((2, 2), (1, 1)), ((1,), (2**48 - 1,)), ((1,), (2**48,)), ((1,) * 32, (1,) * 32),
            ((1,) * 33, (1,) * 33), ((2**47, 0), (1, 1)), ((2**47, 2, 0), (1, 1, 1)),
            ((2**24, 2**24, 0), (1, 1, 1)), ((-1,), (1,)), ((2,), (-1,)))),
        ((-1, (1,), (1,)), (11, (1,), (1,)), (12, (1,), (1,)), (12, (0,), (1,)), (2**48, (0,),
                                                                                  (1,))))
    for offset, shape, strides in grid:
        tensor = torch.tensor(floats, offset, shape, strides)
        told = f"{offset} {shape} {strides}"
        files.add(f"tensor {told if len(told) < 80 else digest(told)}",
                  torch.zip_file(_named(tensor), {"0": DATA.tobytes()}))
    for kind in (*torch.STORAGE_NAMES.values(), "BFloat16Storage", "ComplexFloatStorage"):
        for size in (2, 3, 4, 8):
            files.both(f"{kind} of {size} bytes", _named(torch.tensor(
                torch.storage("0", 1, kind), 0, (1,), (1,))), {"0": bytes([0, 0, 128, 63, 1, 2, 0,
                                                                           64])[
                    :size]}, 1)
    for size, count, bytes_ in itertools.product((11, 12, 13, -1, 2**48), (11, 12, 13), (11, 12,
                                                                                         13)):
        files.add(f"legacy storage of {size}, told {count}, has {bytes_}", torch.legacy_file(
            _named(torch.tensor(torch.storage("0", size), 0, (3,), (1,))),
            {"0": (count, np.arange(bytes_, dtype=np.float32).tobytes())}))
    # all tensors together may take eight times the bytes of the file
    many = np.arange(500, dtype=np.float64)
    of_many = torch.tensor(torch.storage("0", 500, "DoubleStorage"), 0, (500,), (1,))
    for copies in (1, 7, 8, 9, 10, 11, 40):
        files.add(f"one storage {copies} times", torch.zip_file(
            torch.mapping({f"w{i}": of_many for i in range(copies)}), {"0": many.tobytes()}))
    recorded("torch_tensors", files.found)


def test_contents(tmp_path: Path, recorded: Recorded) -> None:
    files = Files(tmp_path)
    whole = torch.tensor(torch.storage("0", 12), 0, (3, 4), (4, 1))
    text, integer, sequence = torch.text, torch.integer, torch.sequence
    ordered = torch.call(torch.name("collections", "OrderedDict"))
    rebuild, parameter = (torch.name("torch._utils", name) for name in (
        "_rebuild_tensor_v2", "_rebuild_parameter"))
    stored = torch.storage("0", 12)

    def stored_as(*parts: Pickle) -> Pickle:
        return _named(torch.tensor(sequence(*parts) + b"Q", 0, (2,), (1,)))

    kind = torch.name("torch", "FloatStorage")
    contents: dict[str, Pickle] = {
        "dict": _named(whole), "empty": torch.mapping({}), "tensor alone": whole,
        "state dict": torch.mapping({"state_dict": _named(whole), "epoch": integer(3)}),
        "model": torch.mapping({"model": _named(whole)}),
        "both": torch.mapping({"model": _named(whole), "state_dict": torch.mapping({"v": whole})}),
        "state dict without tensors": torch.mapping({"state_dict": integer(1),
                                                     "model": _named(whole)}),
        "tensor and dict": torch.mapping({"w": whole, "state_dict": torch.mapping({"v": whole})}),
        "other key": torch.mapping({"net": _named(whole)}), "number": integer(3),
        "list": b"](" + whole + b"e", "other values": torch.mapping({"a": integer(1), "w": whole}),
        "parameter": _named(torch.call(parameter, whole, b"\x88", ordered)),
        "parameter alone": _named(torch.call(parameter, whole)),
        "parameter of nothing": _named(torch.call(parameter)),
        "parameter of number": _named(torch.call(parameter, integer(1))),
        "ordered of list": torch.call(torch.name("collections", "OrderedDict"), b"]"),
        "other function": torch.call(torch.name("os", "system"), text("true")),
        "long name": torch.call(torch.name("o" * 100, "s" * 100), text("true")),
        "rebuild of 3": _named(torch.call(rebuild, stored, integer(0), sequence(integer(1)))),
        "rebuild of 4": _named(torch.call(rebuild, stored, integer(0), sequence(integer(1)),
                                          sequence(integer(1)))),
        "no storage": _named(torch.call(rebuild, integer(0), integer(0), sequence(integer(1)),
                                        sequence(integer(1)))),
        "list as shape": _named(torch.call(rebuild, stored, integer(0), b"]", sequence())),
        "list as strides": _named(torch.call(rebuild, stored, integer(0), sequence(), b"]")),
        "shape and strides": _named(torch.tensor(stored, 0, (1, 1), (1,))),
        "text as size": _named(torch.call(rebuild, stored, integer(0), sequence(text("1")),
                                          sequence(integer(1)))),
        "true as offset": _named(torch.call(rebuild, stored, b"\x88", sequence(integer(1)),
                                            sequence(integer(1)))),
        "storage of 4": stored_as(text("storage"), kind, text("0"), text("cpu")),
        "storage of 6": stored_as(text("storage"), kind, text("0"), text("cpu"), integer(12), b"N"),
        "storage view": stored_as(text("storage"), kind, text("0"), text("cpu"), integer(12),
                                  integer(1)),
        "storage of 7": stored_as(text("storage"), kind, text("0"), text("cpu"), integer(12), b"N",
                                  b"N"),
        "no word": stored_as(text("store"), kind, text("0"), text("cpu"), integer(12)),
        "kind of text": stored_as(text("storage"), text("f"), text("0"), text("cpu"), integer(12)),
        "kind elsewhere": stored_as(text("storage"), torch.name("numpy", "FloatStorage"), text("0"),
                                    text("cpu"), integer(12)),
        "key of number": stored_as(text("storage"), kind, integer(0), text("cpu"), integer(12)),
        "size of text": stored_as(text("storage"), kind, text("0"), text("cpu"), text("12")),
        "size below 0": stored_as(text("storage"), kind, text("0"), text("cpu"), integer(-1)),
        "size below 2**48": stored_as(text("storage"), kind, text("0"), text("cpu"),
                                      integer(2**48 - 1)),
        "size of 2**48": stored_as(text("storage"), kind, text("0"), text("cpu"), integer(2**48)),
        "storage that is a list": _named(torch.tensor(b"]Q", 0, (2,), (1,))),
        "two kinds": torch.mapping({"w": whole, "v": torch.tensor(
            torch.storage("0", 6, "DoubleStorage"), 0, (2,), (1,))}),
        "two storages": torch.mapping({"w": whole, "v": torch.tensor(
            torch.storage("1", 12), 3, (2,), (2,))}),
    }
    storages = {"0": DATA.tobytes(), "1": (DATA + 20).tobytes()}
    for case, content in contents.items():
        files.both(case, content, storages if case == "two storages" else {"0": storages["0"]})
    files.both("storage missing", contents["dict"], {})
    files.both("storage of another name", contents["dict"], {"1": storages["1"]})
    files.both("storage twice as long", contents["dict"], {"0": DATA.tobytes() * 2})
    _containers(files, contents["dict"], storages["0"])
    recorded("torch_contents", files.found)


def _containers(files: Files, content: Pickle, data: bytes) -> None:
    """Adds archives and files of torch before 1.6 with damaged parts around the pickle."""
    for order in (b"little", b"big", b"little "):
        files.add(f"byteorder {order!r}", torch.zip_file(content, {"0": data}, byteorder=order))
    files.add("compressed", torch.zip_file(content, {"0": data}, compression=zipfile.ZIP_DEFLATED))
    whole = torch.zip_file(content, {"0": data})
    for case, at, change in (("encrypted", 8, b"\1"), ("method", 10, b"\x63"), ("checksum", 16,
                                                                                b"\1\2"),
                             ("size", 24, b"\xff\xff\xff\0"), ("place", 42, b"\xff\0")):
        # the same field of each entry of the directory, which lies behind the data
        entries = [place + at for place in range(len(whole))
                   if whole[place:place + 4] == b"PK\1\2"]
        for number, place in enumerate(entries):
            files.add(f"{case} of entry {number}",
                      whole[:place] + change + whole[place + len(change):])
    names: dict[str, tuple[str, ...]] = {
        "no pickle": ("a/data/0",), "two pickles": ("a/data.pkl", "b/data.pkl", "a/data/0"),
        "deeper": ("a/b/data.pkl", "a/b/data/0"), "no folder": ("data.pkl", "data/0"),
        "other": ("a/other.pkl", "a/data/0"), "without byteorder": ("a/data.pkl", "a/data/0")}
    for case, members in names.items():
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name in members:
                archive.writestr(name, torch.whole(content) if name.endswith("pkl") else data)
        files.add(case, out.getvalue())
    files.add("big endian", torch.legacy_file(content, {"0": (12, data)}, little_endian=False))
    parts = [torch.integer(0x1950A86A20F9469CFC6C), torch.integer(1001),
             torch.mapping({"little_endian": b"\x88"}), content, b"](" + torch.text("0") + b"e"]
    tail = (12).to_bytes(8, "little") + data
    others: dict[str, tuple[int, Pickle]] = {
        "magic": (0, torch.integer(1)), "magic text": (0, torch.text("a")),
        "protocol": (1, torch.integer(1002)), "system list": (2, b"]"),
        "system 1": (2, torch.mapping({"little_endian": torch.integer(1)})),
        "system empty": (2, torch.mapping({})), "keys none": (4, b"N"),
        "keys number": (4, b"](" + torch.integer(0) + b"e"), "keys empty": (4, b"]"),
        "keys twice": (4, b"](" + torch.text("0") * 2 + b"e"),
        "keys long": (4, b"](" + torch.text("0" * 60) + b"e")}
    for case, (place, other) in others.items():
        changed = [*parts[:place], other, *parts[place + 1:]]
        files.add(f"legacy {case}", b"".join(map(torch.whole, changed)) + tail)
    for count in (0, 7, 8, 9, 55, 56, 57):
        files.add(f"legacy tail of {count}", b"".join(map(torch.whole,
                                                          parts)) + (tail + b"x")[:count])
    whole = {"zip": torch.zip_file(content, {"0": data}),
             "legacy": torch.legacy_file(content, {"0": (12, data)})}
    for form, file in whole.items():
        # neighbours give the same message, so that only the places where it changes are kept
        before = ""
        for length in range(0, len(file), 3):
            text = files.add("cut", file[:length])
            del files.found["cut"]
            if text != before:
                files.found[f"{form} cut at {length}"] = before = text


def test_instructions(recorded: Recorded) -> None:
    def call(name: Name, arguments: tuple) -> str:
        return f"{name}{arguments}"

    def text(pickle: bytes) -> str:
        return f"{load(io.BytesIO(pickle), call, lambda identity: f'<{identity}>')}"

    values = {"int": b"K\x05", "text": b"\x8c\x01a", "none": b"N", "list": b"]", "dict": b"}",
              "tuple": b")", "name": b"cm\nn\n", "mark": b"(", "nothing": b"", "true": b"\x88"}
    steps = {"TUPLE1": b"\x85", "TUPLE2": b"\x86", "TUPLE3": b"\x87",
             "BINPUT BINGET": b"q\x01h\x01",
             "BINGET": b"h\x01", "MEMOIZE": b"\x94h\x00", "TUPLE": b"t", "LIST": b"l", "DICT": b"d",
             "APPENDS": b"e", "APPEND": b"a", "SETITEMS": b"u", "SETITEM": b"s",
             "GLOBAL": b"cx\ny z\n",
             "STACK_GLOBAL": b"\x93", "REDUCE": b"R", "BUILD": b"b", "BINPERSID": b"Q", "POP": b"0",
             "LONG1": b"\x8a\x02\xff\xff", "BINFLOAT": b"G" + b"\x3f\xf8" + b"\0" * 6,
             "BININT": b"J\xff\xff\xff\xff", "BININT2": b"M\x01\x02",
             "LONG_BINPUT": b"r\2\0\0\0j\2\0\0\0",
             "FRAME": b"\x95\0\0\0\0\0\0\0\0", "PROTO": b"\x80\x04", "INST": b"(im\nn\n",
             "BYTES": b"C\x01a"}
    found: dict[str, str] = {}
    for (one, first), (two, second), (name, step) in itertools.product(
            values.items(), values.items(), steps.items()):
        found[f"{one} {two} {name}"] = _unpickled(text, first + second + step + b".")
    triples = itertools.product(("list", "dict", "text", "name"), ("mark", "int"),
                                ("text", "int", "nothing"), ("int", "tuple", "nothing"),
                                ("APPENDS", "SETITEMS", "SETITEM", "DICT", "REDUCE", "TUPLE3"))
    for *parts, name in triples:
        body = b"".join(values[part] for part in parts) + steps[name]
        found[f"{' '.join(parts)} {name}"] = _unpickled(text, body + b".")
    for body in (b"", b".", b"K\1", b"K\1K\2.", b"(K\1.", b"K\1.K\2.", b"K\1(."):
        found[f"whole {body!r}"] = _unpickled(text, body)
    by_text: dict[str, list[str]] = {}
    for case, result in found.items():
        by_text.setdefault(result, []).append(case)
    recorded("torch_instructions", {
        f"{result}".replace(": ", ":"): f"{len(names)} {', '.join(names[:2])} {digest(names)}"
        for result, names in by_text.items()})


def _unpickled(text: Callable[[bytes], str], pickle: bytes) -> str:
    try:
        return text(pickle)
    except MalformedPickle as error:
        return f"! {error}".partition("damaged (")[0]


def test_a_file_that_is_missing(tmp_path: Path, recorded: Recorded) -> None:
    found = {}
    for case, path in (("absent", tmp_path / "absent.pth"), ("folder", tmp_path)):
        try:
            read_tensors(path)
        except ModelError as error:
            found[case] = str(error).replace(str(tmp_path), "")
    recorded("torch_absent", found)
