"""Files that once did harm: each is read, or refused in one line, and takes little memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gossamer
from gossamer.errors import InputError
from gossamer.io.images import load_image
from gossamer.io.npy import read_arrays
from gossamer.plan.plan import Plan
from gossamer.plan.store import tuning_file
from gossamer.train.data import sources
from gossamer_bench.row_files import read_rows
from gossamer_bench.sparse_files import read_archive, read_sparse
from tests.bench.verb import row
from tests.fuzz import seeds
from tests.fuzz.refusal import MIB, refusal


def no_program(arguments: str) -> None:
    """Runs a piece of Python that ends with an error where it starts a program."""
    watch = ("import sys\ndef hook(event, _):\n"
             "    if event.startswith(('subprocess', 'os.system', 'os.exec', 'os.posix_spawn')):\n"
             "        sys.exit(9)\nsys.addaudithook(hook)\n")
    finished = subprocess.run([sys.executable, "-c", watch + arguments], check=False, timeout=60)
    assert finished.returncode == 0


def test_a_picture_of_another_format_starts_no_program(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.fromarray(seeds.PIXELS).save(path, "EPS")
    no_program("from gossamer.io.images import load_image\nfrom gossamer.errors import InputError\n"
               f"try:\n    load_image({str(path)!r})\nexcept InputError:\n    pass\n"
               "else:\n    sys.exit(1)")


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_MAX_BYTES", "1M")


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("name, read", [
    ("a.onnx.gz", gossamer.load), ("a.csv.gz", sources.load), ("a.tsv.gz", sources.load),
    ("a-images-idx3-ubyte.gz", sources.load), ("a.mtx.gz", read_sparse),
    ("a.tar.gz", read_archive)])
def test_a_packed_file_is_bounded(name: str, read: Callable[[Path], object],
                                  tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes(2 * MIB)))
    (tmp_path / "a-labels-idx1-ubyte.gz").touch()
    message = refusal(lambda: read(path), InputError)
    assert "unpacks to more than 1 MiB" in message and "set GOSSAMER_MAX_BYTES=1G" in message


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("read", [lambda path: read_arrays(str(path), "--input"), sources.load])
def test_a_packed_archive_is_bounded(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((2 * MIB, 1), np.uint8), y=np.zeros(2 * MIB, np.uint8))
    assert "unpacks to more than 1 MiB" in refusal(lambda: read(path), InputError)


def test_a_limit_that_is_no_number(tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"1,2\n"))
    for text in ("9x", "-1", "many", "1e9"):
        monkeypatch.setenv("GOSSAMER_MAX_BYTES", text)
        assert "expected a number of bytes" in refusal(lambda: sources.load(packed), InputError)


def test_a_member_with_holes_is_bounded(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.smtx")
        info.size = 512
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                            "GNU.sparse.name": "a.smtx", "GNU.sparse.realsize": str(2**40)}
        archive.addfile(info, io.BytesIO(f"1\n{2**40 - 1}\n1\n".encode().ljust(512, b"\0")))
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(file.getvalue()))
    assert "unpacks to more than 256 MiB" in refusal(lambda: read_archive(path), InputError)


def test_a_long_line_is_not_split(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"0," * (10 * MIB)))
    assert "line 1 has 16777216 characters or more" in refusal(lambda: sources.load(path))


@pytest.mark.parametrize("header", [
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (", b"(" * 300, b"\x00" * 60,
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
    b"{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }", b"'''", b"1e", b"[0] * 9"])
def test_damaged_headers_of_arrays(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "cannot be read as a .npy array" in refusal(lambda: read_arrays(str(path), "--input"))


def test_a_label_without_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4)), y=np.array(1))
    message = refusal(lambda: sources.load(tmp_path / "a.npz"), InputError)
    assert "y is scalar int64, expected one label per sample" in message


def _with_hash(archive: bytes) -> bytes:
    return b"gossamer checkpoint 4\n" + hashlib.sha256(archive).digest() + archive


def _changed(**changes: Any) -> bytes:
    """Returns a checkpoint whose arrays or header have other values, with the right hash."""
    data = seeds.checkpoints()[0][len(b"gossamer checkpoint 4\n") + 32:]
    with np.load(io.BytesIO(data)) as loaded:
        arrays = dict(loaded)
    header = json.loads(arrays["header"].tobytes())
    arrays.update({key: value for key, value in changes.items() if isinstance(value, np.ndarray)})
    header.update({key: value for key, value in changes.items()
                   if not isinstance(value, np.ndarray)})
    if "header" not in changes:
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return _with_hash(file.getvalue())


@pytest.mark.parametrize("changes", [
    {"epochs_done": 10**9}, {"epochs_done": -1}, {"epochs_done": "2"}, {"epochs_done": True},
    {"first": "x"}, {"first": []}, {"rng": None}, {"rng": {}},
    {"rng": {"bit_generator": "MT19937"}},
    {"best": [9, {"loss": 1.0, "score": 1.0}]}, {"best": [1, {}]}, {"best": [1, {"loss": 1.0}]},
    {"best": np.zeros(3, np.float32)}, {"best": 1}, {"validation": {"loss": "x", "score": 1.0}},
    {"validation": [1, 2]}, {"progress": []}, {"progress": [-1, 1.0]}, {"progress": "no"},
    {"settings": []}, {"settings": {}}, {"settings": {"sizes": [4, 6, 3]}}, {"data": 1},
    {"parameters": np.zeros(3, np.float32)}, {"parameters": np.zeros((2, 2))},
    {"parameters": np.array(["a"])}, {"curve": np.zeros((2, 2))}, {"curve": np.zeros(0)},
    {"curve": np.array([1, 2])}, {"header": np.zeros(9, np.uint8)},
    {"header": np.frombuffer(b"[" * 5000, np.uint8)}, {"header": np.frombuffer(b"[1]", np.uint8)}],
    ids=lambda changes: next(iter(changes)))
def test_checkpoints_of_a_right_hash_and_wrong_content(changes: dict[str, Any],
                                                       tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(_changed(**changes))
    message = refusal(lambda: seeds.train(path, 3, resume=True),
                      InputError)
    assert message.startswith(str(path))


def test_checkpoints_that_are_no_archive_or_lack_an_array(tmp_path: Path) -> None:
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w"):
        pass
    path = tmp_path / "c"
    for content in (b"", b"PK", empty.getvalue()):
        path.write_bytes(_with_hash(content))
        assert "the checkpoint has invalid content" in refusal(
            lambda: seeds.train(path, 3, resume=True))


def test_a_changed_checkpoint_is_otherwise_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(_changed())
    resumed = seeds.train(path, 3, resume=True)
    assert len(resumed.loss_curve_) == 3


@pytest.mark.parametrize("values", [
    {"batch": "1"}, {"batch": -1}, {"median_us": None}, {"median_us": "fast"}, {"median_us": 0},
    {"median_us": float("nan")}, {"error": []}, {"versions": []}, {"versions": {"a": 1}},
    {"commit": 1}, {"suite": None}, {"notice": 3}, {"speed_of_light_us": "x"}, {"density": {}},
    {"case": ["a"]}], ids=repr)
def test_result_rows_with_values_of_other_types(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    fields = vars(row("gossamer", 10.0)) | values
    path.write_text(json.dumps(fields) + "\n")
    (key,) = values
    assert f"line 1: {key} is " in refusal(lambda: read_rows(path), InputError)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_measurements_with_numbers_that_json_lacks(number: str) -> None:
    content = json.loads(seeds.measurements()[0])
    (line,) = content["sections"][0]["candidates"].values()
    line["p75_us"] = "NUMBER"
    with pytest.raises(tuning_file.BadFile, match="corrupt or cut short"):
        tuning_file.parse(json.dumps(content).replace('"NUMBER"', number).encode())


def test_names_in_an_archive_do_not_break_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("a\nb\r\n\x1b[31m.smtx")
        archive.addfile(info, io.BytesIO())
    assert r"a b \x1b[31m.smtx" in refusal(lambda: read_archive(path))


def test_cells_of_a_table_do_not_break_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('label\ta\n1\t"x\ny\n' + "z" * 5000 + '"\n')
    message = refusal(lambda: sources.load(path), InputError)
    assert r"x\ny" in message and "zz...zz" in message


def test_photos_with_too_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (9000, 9000)).save(path)
    assert "too many pixels; scale it down to 67108864 or fewer" in refusal(
        lambda: load_image(path), InputError)


@pytest.mark.parametrize("text", ["); system(1", "a b", "x\ny", "1", "0x1", "é"])
def test_no_text_of_a_plan_comes_near_a_kernel(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    source = zipfile.ZipFile(io.BytesIO(seeds.plan_files()[0]))
    with zipfile.ZipFile(path, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name == "graph.json":
                graph = json.loads(content)
                attributes = graph["Graph"]["nodes"][0]["Node"]["attributes"]["dict"]
                attributes[[name for name, _ in attributes].index("strides")][1] = {
                    "tuple": [text, 1]}
                content = json.dumps(graph).encode()
            archive.writestr(name, content)
    assert "is corrupt or cut short" in refusal(lambda: Plan.load(path, "host"), InputError)


def test_a_constant_of_an_expression_is_a_number(tmp_path: Path) -> None:
    from gossamer.expression import Expression, ExpressionStep

    for constants in (("1); system(",), (), (1.0, 2.0)):
        with pytest.raises(ValueError, match="bad constants"):
            Expression(1, (ExpressionStep("leaky_relu", (0,), constants),))  # type: ignore[arg-type]
