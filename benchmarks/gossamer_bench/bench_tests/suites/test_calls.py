"""The suites of calls, and the table of one network."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import gossamer
from bench_tests.conftest import PEAKS
from gossamer.bench.call_times import Load
from gossamer.bench.calls import BOUND, ONE_BY_ONE
from gossamer.bench.work import OWN, PeerNetwork
from gossamer.cli.app import app
from gossamer.errors import InputError
from gossamer.io.images import Preprocessing
from gossamer.model.builder import GraphBuilder
from gossamer_bench import peaks
from gossamer_bench.report.tables import markdown
from gossamer_bench.row_files import csv_bytes, read_rows
from gossamer_bench.suites import calls
from gossamer_bench.suites.calls import folder_case
from gossamer_bench.work import Files
from tests.bench.verb import bench


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch: pytest.MonkeyPatch, quick_calls: None) -> None:
    monkeypatch.setattr(peaks, "measure_peaks", lambda device, precisions: PEAKS)


def test_calls_from_arrays_and_bytes(tiny_file: Path, tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.jsonl"
    result = bench("latency", tiny_file, "--device", "host", "--batch", "1", "--threads", "1,2",
                   "-o", rows_file)
    rows = read_rows(rows_file)
    assert {row.case for row in rows} == {"tiny/arrays", "tiny/arrays/2-threads", "tiny/bytes",
                                          "tiny/bytes/2-threads"}
    for case in {row.case for row in rows}:
        assert {OWN, BOUND, "onnxruntime"} <= {row.contender for row in rows if row.case == case}
    for row in rows:
        assert row.median_us <= row.tail["p99_us"] <= row.tail["p99.9_us"] <= row.tail["max_us"]
        assert "closed loop" in row.config
        assert ("2 threads" in row.config.split("closed loop")[1]) == ("2-threads" in row.case)
        if row.contender in (OWN, BOUND):
            assert row.layout == ("NHWC" if "bytes" in row.case else "NCHW")
    if find_spec("torch") is None:
        assert "absent: torch-compile: torch is not installed" in result.stdout
    assert "notice: absent: tiny/tensors: host does not support torch tensors" in result.stderr
    assert "p99.9" in result.stdout and "| p99 | p99.9 |" in markdown(rows)
    (line,) = csv.DictReader(io.StringIO(csv_bytes(rows[:1]).decode()))
    assert json.loads(line["tail"]) == rows[0].tail


def test_throughput_of_arrays_bytes_and_pictures(tiny_file: Path, tmp_path: Path) -> None:
    folder, rows_file = tmp_path / "photos", tmp_path / "rows.jsonl"
    folder.mkdir()
    for index in range(7):
        pixels = np.random.default_rng(index).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    bench("throughput", tiny_file, "--device", "host", "--batch", "3", "--images", folder, "-o",
          rows_file)
    rows = {(row.case, row.contender): row for row in read_rows(rows_file)}
    assert {OWN, ONE_BY_ONE, "onnxruntime"} <= {name for case, name in rows
                                                if case == "tiny/arrays"}
    for (case, name), row in rows.items():
        assert row.batch == 3 and not row.tail
        a_second = float(row.config.split(" images a second")[0].replace(",", ""))
        # a rate is a whole number, and a row's median has six digits
        expected = 3e6 / row.median_us
        assert a_second == pytest.approx(expected, abs=0.5 + 5e-6 * expected, rel=0)
        if name.startswith(OWN):
            assert "kernels alone" in row.config and "GB/s" in row.config
            assert row.layout == ("NCHW" if case == "tiny/arrays" else "NHWC")
            assert ("plan(x) in a loop" in row.config) == (name == ONE_BY_ONE)
        assert ("decoded alone" in row.config) == (case == "tiny/pictures")


@pytest.mark.parametrize("images", [None, Path("photos")])
def test_pictures_are_a_case_where_a_folder_is_named(images: Path | None) -> None:
    def make(batch: int) -> PeerNetwork:
        raise AssertionError("no case is made before it is measured")

    items = calls.throughput_items("tiny", make, 3, Files(images=images))
    names = ["tiny/arrays", "tiny/bytes", *["tiny/pictures"] * (images is not None)]
    assert [item.name for item in items] == names
    assert {(item.suite, item.batch, item.is_called) for item in items} == {("throughput", 3, True)}


def test_pictures_are_prepared_as_the_network_says() -> None:
    own = Preprocessing(scale=1 / 255, mean=(0.1,))
    for channels, order in ((1, "grey"), (3, "rgb")):
        build = GraphBuilder("tiny")
        shape = (None, channels, 8, 6)
        build.output(build.apply("relu", build.input("x", shape)), shape)
        graph = build.finish()
        usual = calls._preparation(PeerNetwork("tiny", graph))
        assert (usual.channels, usual.size) == (order, (8, 6))
        graph.metadata = replace(graph.metadata, preprocessing=replace(own, channels=order))
        said = calls._preparation(PeerNetwork("tiny", graph))
        assert said == replace(own, channels=order, size=(8, 6))


@pytest.mark.parametrize("shape", [(None, 2, 8, 8), (None, 3), (None, 3, 8)])
def test_a_network_that_takes_no_pictures(tmp_path: Path, shape: tuple[int | None, ...]) -> None:
    build = GraphBuilder("tiny")
    build.output(build.apply("relu", build.input("x", shape)), shape)
    network = PeerNetwork("tiny", build.finish())
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "0.png")
    setting: Any = None  # nothing is measured
    with pytest.raises(InputError, match="--images: tiny takes no pictures"):
        folder_case(lambda batch: network, 2, tmp_path, Load(), setting)


def test_a_picture_that_cannot_be_read_is_an_error(tiny_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(5):
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / f"{index}.png")
    (folder / "3.png").write_bytes(b"nonsense")
    network = PeerNetwork("tiny", gossamer.load(tiny_file))
    setting: Any = None  # nothing is measured
    with pytest.raises(InputError, match=r"photos/3\.png: not a readable image"):
        folder_case(lambda batch: network, 2, folder, Load(), setting)


@pytest.mark.parametrize("words, message", [
    (("latency", "absent.onnx"), "absent.onnx"),
    (("latency", "--threads", "0"), "--threads 0: expected numbers of 1 or more, like 1,4"),
    (("latency", "--rate", "0"), "--rate 0: expected a number of calls per second above 0"),
    (("latency", "--seconds", "0"), "--seconds 0: expected a number above 0"),
    (("latency", "--images", "."), "--images .: goes with the suite throughput"),
    (("gemm", "mobilenet_v2"), "--model mobilenet_v2: goes with the suite networks"),
    (("mobilenet_v2", "yolov4-tiny"), "yolov4-tiny: expected only one network"),
    (("nothing",), "no suite 'nothing'; there are: "),
    (("mobilenet_v2", "--against", "jax"), "unknown peer 'jax'; expected some of torch-eager"),
])
def test_wrong_words(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words, "--device", "host"])
    assert result.exit_code == 2 and message in result.stderr, result.output
