"""Records of how files of users are read and how their numbers are shown."""

from __future__ import annotations

import gzip
import io
import itertools
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gossamer.errors import ModelError
from gossamer.io import (
    arrays,
    images,
    limits,
    npy,
    output_files,
    packed,
    picture_files,
    terminal,
    text,
)
from gossamer.io.images import PRESETS, Preprocessing
from gossamer.io.labels import reader
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK")


def test_preprocessings(recorded: Recorded) -> None:
    found = {}
    for name, values in {
            "channels": ("rgb", "bgr", "grey", "RGB"), "rounding": (*images.ROUNDINGS, "up"),
            "mean": ((), (1.0,), (1.0, 2.0), (1.0, 2.0, 3.0), (np.inf,), (1.0, 2.0, np.nan)),
            "std": ((), (2.0,), (1.0, 2.0), (1.0, 2.0, 3.0), (0.0,), (1.0, 0.0, 1.0), (np.nan,)),
            "scale": (0.0, 2.0, np.nan, np.inf),
            "size": (None, (1, 1), (0, 1), (1, 0), (16384, 1), (1, 16385), (16385, 1)),
            "resize": (None, 0, 1, 16384, 16385)}.items():
        for value, other in itertools.product(values, (
                {}, {"channels": "grey"}, {"size": (4, 5)}, {"resize": 5})):
            found[f"{name} {value} {list(other.values())}"] = outcome(
                lambda **fields: "accepted" if Preprocessing(**fields) else "", **{
                    **other, name: value})
    for size, resize in itertools.product(((3, 3), (4, 6), (6, 4)), (3, 4, 5, 6, 7)):
        found[f"cropped {size} {resize}"] = outcome(Preprocessing, size, resize)
    recorded("io_preprocessings", found)


def test_fitted_preprocessings(recorded: Recorded) -> None:
    found = {}
    for (name, made), shape in itertools.product(
            (*PRESETS.items(), ("small", Preprocessing((4, 6), 8)), ("sized", Preprocessing(
                (4, 6))), ("grey", Preprocessing((2, 12), channels="grey")),
             ("resized", Preprocessing(resize=8))),
            ((None, 3, 4, 6), (None, 3, 12, 4), (None, 3, None, 6), (None, 3, 4, None),
             (None, 3, 300, 300), (None, 24), (None, 72), (None, 75), (None, None), (None, 0),
             (None, 3, 4), (None, 3, 224, 224), (None, 1), (None, 784))):
        found[f"{name} {shape}"] = outcome(made.fitted, shape, text=lambda new: (
            f"{new.size} {new.resize} {new.channels}"))
    recorded("io_fitted", found)


def test_prepared_photos(recorded: Recorded) -> None:
    """Records the pixels that are taken. A photo whose short side is the length that it is scaled
    to keeps its pixels, so that the record does not depend on Pillow's filter."""
    rng = np.random.default_rng(0)
    found = {}
    for height, width in ((5, 5), (5, 7), (8, 5), (40, 5)):
        photo = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
        for size, resize in ((None, None), ((height, width), None), (None, 5), ((3, 3), 5),
                             ((2, 5), 5), ((4, 3), 5), ((5, 5), 5)):
            for channels, rounding in itertools.product(images.CHANNEL_ORDERS, images.ROUNDINGS):
                numbers = (1.0,) if channels == "grey" else (1.0, 0.25, 0.5)
                made = Preprocessing(size, resize, channels, 1 / 128, numbers, numbers, rounding)
                found[f"{height}x{width} {size} {resize} {channels} {rounding}"] = (
                    f"{made(photo).shape} {digest(rounded(made(photo)))} "
                    f"{digest(made.pixels(photo))}")
    for height, width, resize in ((1, 8, 2047), (1, 8, 2048), (1, 8, 2049), (8, 1, 2049),
                                  (7, 3, 5), (3, 7, 5)):
        found[f"long {height}x{width} {resize}"] = outcome(
            Preprocessing(resize=resize).pixels, np.zeros((height, width, 3), np.uint8),
            text=lambda pixels: str(pixels.shape))
    for shapes in ([(2, 2), (2, 2)], [(2, 2), (2, 3)], [(2, 2)]):
        for name in ("batch", "pixel_batch"):
            found[f"{name} of {shapes}"] = outcome(
                getattr(Preprocessing(), name),
                [np.zeros((*shape, 3), np.uint8) for shape in shapes],
                text=lambda batch: f"{batch.shape} {batch.dtype}")
    signed = Preprocessing(mean=(0.0,), std=(128.0,), rounding="signed8")
    levels = np.array([-200, -128, -127.5, -1, -0.5, 0, 0.5, 127, 127.5, 128, 200], np.float32)
    for rounding in images.ROUNDINGS:
        made = Preprocessing(signed.size, std=signed.std, rounding=rounding)
        found[f"levels {rounding}"] = as_text(rounded(made.normalised(levels.reshape(1, -1))))
    recorded("io_photos", found)


def _photo_bytes(mode: str, height: int, width: int, kind: str, orientation: int = 1) -> bytes:
    rng = np.random.default_rng(height * 10 + width)
    pixels = rng.integers(0, 256, (height, width, 4)).astype(np.uint8)
    if mode == "I;16":
        made = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257 + pixels[:, :, 1] // 2)
    elif mode in ("1", "L", "P"):
        made = Image.fromarray(np.where(pixels[:, :, 0] > 127, 255, 0).astype(np.uint8) if (
            mode == "1") else pixels[:, :, 0]).convert(mode)
    elif mode in ("LA", "CMYK"):
        made = Image.fromarray(pixels if mode == "LA" else pixels[:, :, :3]).convert(mode)
    else:
        made = Image.fromarray(pixels).convert(mode)
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[274] = orientation
    options: dict[str, Any] = {"exif": exif} if orientation != 1 else {}
    if mode == "P" and width % 2:
        options["transparency"] = 3
    made.save(stream, kind, **options)
    return stream.getvalue()


def test_files_of_photos(recorded: Recorded, tmp_path: Path,
                         monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}

    def read(data: bytes, name: str = "photo") -> str:
        pixels = outcome(images.decode_image, data, name, text=lambda photo: (
            f"{photo.mode} {photo.size} {digest(np.asarray(photo))}"))
        # Pillow's words for a damaged file are not ours
        return re.sub(r"\(.*", "", pixels) if "damaged image" in pixels else pixels

    for mode, (height, width) in itertools.product(MODES, ((1, 1), (2, 3), (5, 4))):
        for kind in ("PNG", "BMP", "TIFF"):
            try:
                data = _photo_bytes(mode, height, width, kind)
            except OSError:
                continue
            found[f"{mode} {height}x{width} {kind}"] = read(data)
            found[f"{mode} {height}x{width} {kind} without the last byte"] = read(data[:-1])
            if kind == "BMP":
                # the sizes of the other kinds depend on a library that packs them
                found[f"{mode} {height}x{width} half"] = read(data[:len(data) // 2])
    for orientation in range(1, 9):
        found[f"orientation {orientation}"] = read(_photo_bytes("RGB", 2, 3, "PNG", orientation))
    for name in ("a.npy", "a.npz", "a.txt"):
        found[f"no photo {name}"] = read(b"nothing", name)
    monkeypatch.setattr(images, "MOST_PIXELS", 12)
    for height, width in ((3, 4), (12, 1), (13, 1), (1, 13), (11, 1), (25, 1)):
        found[f"most pixels {height}x{width}"] = read(_photo_bytes("L", height, width, "PNG"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "some.png").write_bytes(b"nothing")
    for name in ("folder", "absent.png", "some.png"):
        found[f"file {name}"] = outcome(images.open_image, tmp_path / name, hidden=tmp_path)
    recorded("io_photo_files", found)


def test_arrays(recorded: Recorded, tmp_path: Path) -> None:
    found = {}

    def read(data: bytes, size: int | None = None) -> str:
        shown = outcome(npy.read_array, io.BytesIO(data), len(data) if size is None else size)
        return shown if len(shown) < 140 else shown[:60] + digest(shown)

    for shape, dtype, order in itertools.product(
            ((), (0,), (1,), (3,), (2, 3), (0, 5), (2, 1, 2)), ("<f4", "|u1", "<U3", "<f8"),
            "CF"):
        stream = io.BytesIO()
        np.save(stream, np.asarray(np.arange(np.prod(shape)).reshape(shape), dtype, order=order))
        data = stream.getvalue()
        found[f"{shape} {dtype} {order}"] = read(data)
        found[f"{shape} {dtype} {order} one less"] = read(data[:-1])
        found[f"{shape} {dtype} {order} one more"] = read(data + b"0")
        found[f"{shape} {dtype} {order} ends"] = read(data[:-1], len(data))
    for version in ((1, 0), (2, 0), (3, 0), (0, 1)):
        found[f"version {version}"] = read(npy.MAGIC + bytes(version) + data[8:])
    for count in range(9):
        found[f"first {count} bytes"] = read(data[:count])
    for shape in ("(-1,)", "(2, -3)", "(1,", "3", "('a',)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        told = read(npy.MAGIC + b"\1\0" + len(header).to_bytes(2, "little") + header)
        found[f"shape {shape}"] = told if "says it holds" in told else told.split(":")[0]
    stream = io.BytesIO()
    np.save(stream, np.array([{}]), allow_pickle=True)
    found["objects"] = read(stream.getvalue())
    for members in ({}, {"x.npy": data}, {"x.npy": data, "y.npy": data, "notes.txt": b"a"},
                    {"x.npy": data[:-1]}):
        path = tmp_path / "some.npz"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        found[f"archive {list(members)}"] = outcome(arrays.read_arrays, str(path), "--input",
                                                    hidden=tmp_path)
        with npy.read_archive(path, "some") as opened:
            found[f"member of {list(members)}"] = outcome(opened.read, "x", hidden=tmp_path)
    for name, content in (("absent", None), ("PK", b"PK"), ("empty", b""), ("whole", data)):
        path = tmp_path / f"{name}.npy"
        if content is not None:
            path.write_bytes(content)
        found[f"file {name}"] = outcome(arrays.read_arrays, str(path), "--input", hidden=tmp_path)
    found["folder"] = outcome(arrays.read_arrays, str(tmp_path), "--input", hidden=tmp_path)
    recorded("io_arrays", found)


def test_limits(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    monkeypatch.setattr(limits, "host_memory", lambda: 2**33)
    for value in ("0", "1", " 7 ", "8G", "8g", "2 KiB", "3kb", "4MiB", "5T", "1i", "1gi", "G",
                  "-1", "1.5G", "1" * 18, "1" * 19, "x"):
        found[f"bytes {value}"] = outcome(limits.bytes_of, value, "option")
    for variable in (None, "", " ", "5", "1k", "some"):
        if variable is None:
            monkeypatch.delenv(limits.VARIABLE, raising=False)
        else:
            monkeypatch.setenv(limits.VARIABLE, variable)
        found[f"limit {variable}"] = outcome(limits.set_limit)
        for size in (0, 1, 2**23 - 1, 2**23, 2**23 + 1, 2**30):
            found[f"unpacked {variable} {size}"] = outcome(limits.most_unpacked, size)
            found[f"values {variable} {size}"] = as_text([
                outcome(limits.most_value_bytes, size, batch) for batch in (0, 1, 4, 5, 100)])
            for unpacked in (4, 5, 6, 1024, 1025, 2**28, 2**28 + 1, 2**28 + 32, 2**28 + 33):
                found[f"check {variable} {size} {unpacked}"] = outcome(
                    limits.check_unpacked, "file", unpacked, size)
    for needed in (1, 2**30 - 1, 2**30, 2**30 + 1, 2**34):
        found[f"raised {needed}"] = limits.raised(needed)
    recorded("io_limits", found)


def _content(path: Path) -> bytes:
    with packed.opened(path) as stream:
        return stream.read()


def _lines(path: Path) -> list[str]:
    with packed.opened_lines(path) as texts:
        return list(texts)


def test_packed_files(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    contents = {"empty": b"", "one": b"a", "text": b"one\ntwo\r\n\nlast",
                "mark": b"\xef\xbb\xbfa\n", "bytes": b"a\xff\n",
                "long": b"x" * 9 + b"\n" + b"y" * 8 + b"\n" + b"z" * 7}
    monkeypatch.setattr(packed, "_LONGEST_LINE", 9)
    monkeypatch.setattr(packed, "_CHUNK", 4)
    path = tmp_path / "file"
    for limit in (None, "8", "20", "25", "26", "27"):
        if limit is not None:
            monkeypatch.setenv(limits.VARIABLE, limit)
        for (name, content), form in itertools.product(contents.items(), ("plain", "gzip", "cut")):
            data = content if form == "plain" else gzip.compress(content, mtime=0)
            data = data[:-1] if form == "cut" else data
            path.write_bytes(data)
            key = f"{name} {form} {limit}"
            for what, told in (
                    ("opened", outcome(_content, path, hidden=tmp_path)),
                    ("lines", outcome(_lines, path, hidden=tmp_path)),
                    ("unpacked", outcome(packed.unpacked, data, "data", ModelError))):
                # the words within parentheses are Python's, and the size is that of its library
                found[f"{what} {key}"] = re.sub(r"damaged \(.*|for \d+ B", "...", told)
    found["whole"] = outcome(packed.whole, path, text=digest)
    for name in ("absent", ""):
        found[f"whole {name}"] = outcome(packed.whole, tmp_path / name, hidden=tmp_path)
        found[f"opened {name}"] = outcome(lambda name=name: packed.opened(
            tmp_path / name).__enter__(), hidden=tmp_path)
    recorded("io_packed", found)


def test_texts(recorded: Recorded) -> None:
    found = {}
    numbers = [0, 1, 999, 1000, 1001, 999_999, 10**6, 10**6 + 1, 10**9 - 1, 10**9, 10**12 - 1,
               10**12, 123456, -1000, -999, 0.5]
    found["human"] = " ".join(map(text.human, numbers))
    sizes = [0, 1, 1023, 1024, 1025, 2**20 - 1, 2**20, 2**30 - 1, 2**30, 2**40 - 1, 2**40, 2**50]
    found["bytes"] = " ".join(text.bytes_text(size) for size in sizes)
    shares = [0, 1, 1e-9, 4.99e-4, 5e-4, 5.01e-4, 0.0099, 0.01, 0.011, 0.5, 0.99, 0.9901, 0.9994,
              0.9995, 0.99951, 0.9999999]
    found["shares"] = " ".join(map(text.share_text, shares))
    found["shapes"] = " ".join(map(text.shape_text, ((), (1,), (None, 2), ("N", 3, None))))
    for value in (None, "a", 1, 999.94, 999.96, 1000.0, 1000.5, -999.9, -1000.4, 0.12345, (1, 2),
                  [3], True, float("nan")):
        found[f"cell {value}"] = terminal._cell(value)
    for cells in ([], ["1"], ["1.5", "<3%"], ["1.2.3"], ["a"], ["1 k", "2 MiB"], [">5 G"], ["-1"]):
        found[f"numeric {cells}"] = str(terminal._numeric(cells))
    for index, value in enumerate((
            {"a": (1, np.float32(2))}, [np.int64(3), float("nan")], float("inf"), 1.5,
            {1: {2: [float("-inf")]}})):
        found[f"plain {index}"] = as_text(terminal.plain(value))
    recorded("io_texts", found)


def test_tables(recorded: Recorded, monkeypatch: pytest.MonkeyPatch,
                capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    rows = [{"name": "first layer of the net", "why": "a reason that is long enough", "us": 1.25,
             "more": "x" * 17, "note": "below the table"},
            {"name": "b", "why": "short", "us": 1234.5, "more": None, "note": ""},
            {"name": "näme 中文", "us": 7, "more": "yy\nzz"}]
    columns = {"name": "layer", "why": "why", "us": "time, us", "more": "more of it",
               "note": "notes"}
    console = terminal.Console
    for width, spare, below in itertools.product(
            (10, 24, 30, 37, 45, 52, 60, 66, 67, 75, 82, 83, 90, 91, 92, 93, 200),
            ((), ("why",), ("why", "more"), ("absent", "us")), ("", "note")):
        monkeypatch.setattr(terminal, "Console", lambda width=None, real=width: console(
            width=real, color_system=None))
        terminal.print_table(columns, rows, spare, below)
        lines = capsys.readouterr().out
        found[f"{width} {spare} {below}"] = f"{digest(lines)} {lines.splitlines()[0]}"
        if width in (37, 60, 90) and spare == ("why", "more"):
            found[f"lines {width} {below}"] = lines
    for full, may_cut, spare in (({"a": 9, "b": 20, "c": 30}, "abc", ["c"]),
                                 ({"a": 9, "b": 20, "c": 30}, "ab", ["b", "c"]),
                                 ({"a": 7, "b": 6, "c": 5}, "abc", []),
                                 ({"a": 13, "b": 12, "c": 0}, "abc", ["a", "b", "c"])):
        for available in range(10, 66):
            found[f"widths {full} {may_cut} {spare} {available}".replace(": ", "=")] = (
                str(terminal._widths(full, may_cut, spare, available)).replace(" ", ""))
    terminal.notice("a\n b   c", "warning")
    terminal.notice("d")
    found["notices"] = capsys.readouterr().err
    recorded("io_tables", found)


def test_output_files(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("some.npy").write_bytes(b"")
    Path("link.npy").symlink_to("some.npy")
    found = {}
    for name, outputs in itertools.product(
            ("", "new.npy", "new.npz", "new.txt", "some.npy", "link.npy", "folder", "folder.npy/",
             "none/new.npy", "folder/new.npz", "some.npy/new.npy"), (0, 1, 2)):
        for read in ((), ("some.npy",), ("none.npy",)):
            found[f"output {name} {outputs} {read}"] = outcome(
                output_files.check, name, outputs, read, text=str, hidden=tmp_path)
    for name, suffix, read in itertools.product(
            ("new.html", "folder", "none/a.html", "some.npy"), (None, ".html"),
            ((), ("some.npy",))):
        found[f"file {name} {suffix} {read}"] = outcome(
            output_files.check_file, "--html", Path(name), suffix, read, hidden=tmp_path)
    for name, values in (("a.npy", {"x": np.arange(3)}), ("a.npz", {"x": np.arange(3), "file": (
            np.ones(1))})):
        output_files.write(Path(name), name, values)
        found[f"written {name}"] = as_text(arrays.read_arrays(name, "--input"))
    recorded("io_output_files", found)


def test_lists_of_files_and_names(recorded: Recorded, tmp_path: Path) -> None:
    found = {}
    for index, names in enumerate(((), ("a.txt",), ("a.txt", "b"), (".a.png",), ("b.PNG", "a.jpeg"),
                                   ("a.png", "x/b.bmp", ".y/c.png", "x/d", "x/.e", "z/f"))):
        top = tmp_path / str(index)
        top.mkdir()
        for name in names:
            (top / name).parent.mkdir(exist_ok=True)
            (top / name).write_bytes(b"")
        found[f"pictures {names}"] = outcome(
            picture_files.pictures_in, top, hidden=top,
            text=lambda pair: f"{list(map(str, pair[0]))} {pair[1]}")
    for index, content in enumerate((b"", b"a\n", b"a\nb", b" a \n\n b\n\n\n",
                                     b"\xef\xbb\xbfa\nb\nc", b"\xff", b"\n\n")):
        path = tmp_path / f"{index}.txt"
        path.write_bytes(content)
        found[f"names {content!r}"] = outcome(reader.read_names, path, hidden=tmp_path)
        for count in (0, 1, 2, 3):
            found[f"classes {content!r} {count}"] = outcome(reader.class_names, path, count,
                                                            hidden=tmp_path)
    for count, own in itertools.product((1, 2, 999, 1000, 1001), ((), ("a",), ("a", "b"))):
        found[f"own {count} {own}"] = outcome(
            reader.class_names, None, count, own,
            text=lambda names: as_text(names and (names[0], len(names))))
    found["absent"] = outcome(reader.read_names, tmp_path / "none", "--names", hidden=tmp_path)
    recorded("io_names", found)
