"""`gossamer bench` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gossamer.bench import peaks, suites
from gossamer.bench.rows import KEYS, read_rows
from gossamer.bench.suites import Case, network_case
from gossamer.cli import app
from gossamer.device.base import Device
from tests.bench.conftest import PEAKS
from tests.bench.networks import tiny


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def suite(device: Device, batch: int, against: Sequence[str]) -> Iterator[Case]:
        yield network_case("tiny", tiny(), device, batch, against)

    monkeypatch.setitem(suites.SUITES, "tiny", suite)
    monkeypatch.setattr(peaks, "measure_peaks", lambda device: PEAKS)


def bench(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_rows_table_and_readme(tmp_path: Path) -> None:
    path, readme = tmp_path / "host" / "tiny.jsonl", tmp_path / "README.md"
    done = bench("tiny", "--device", "host", "--batch", "1,2", "--against",
                 "torch-graph,onnxruntime", "-o", path, "--commit", "abc")
    assert done.exit_code == 0, done.output
    assert "tiny, batch 2" in done.stdout and "absent: torch-graph: " in done.stdout
    rows = read_rows(path)
    assert {row.batch for row in rows if row.contender == "gossamer"} == {1, 2}
    assert {row.commit for row in rows} == {"abc"} and len({row.run_id for row in rows}) == 1
    assert rows[0].command.startswith("gossamer ")
    readme.write_text("<!-- bench:tiny -->\n<!-- /bench -->\n")
    assert bench("--table", tmp_path / "host", "--into", readme).exit_code == 0
    assert bench("--table", path).stdout.strip() in readme.read_text()


def test_json() -> None:
    done = bench("tiny", "--device", "host", "--batch", "1", "--against", "none", "--json")
    document = json.loads(done.stdout)
    ((row,),) = [result["rows"] for result in document["results"]]
    assert tuple(row) == KEYS and document["peak_flops"] == PEAKS.flops


@pytest.mark.parametrize(("words", "reason"), [
    ((), "no suite given; there are: mobilenet"),
    (("yolo",), "no suite 'yolo'"),
    (("tiny", "--batch", "0"), "--batch 0: expected sizes of 1 or more"),
    (("tiny", "--batch", "one"), "--batch one"),
    (("tiny", "--against", "caffe"), "no peer 'caffe'; expected some of torch-eager"),
    (("tiny", "--precision", "fp8"), "--precision fp8: expected fp32"),
    (("tiny", "-o", "rows.csv"), "ends in .jsonl"),
    (("tiny", "--device", "tpu:0"), "there is no device 'tpu:0'"),
    (("tiny", "--into", "README.md"), "--into goes with --table"),
    (("--table", "no-such-file"), "no-such-file: cannot be read"),
])
def test_bad_input_is_one_line(words: tuple[str, ...], reason: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and reason in line


def test_simulators_are_not_measured() -> None:
    from tests.conftest import is_slow, working_devices

    slow = [device.name for device in working_devices().values() if is_slow(device)]
    if not slow:
        pytest.skip("no simulator works here")
    assert "times mean nothing" in bench("tiny", "--device", slow[0]).stderr
