"""The verb `bench` on the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.testing import CliRunner

from bench_tests.conftest import PEAKS
from bench_tests.networks import tiny
from gossamer.bench import work
from gossamer.cli.app import app
from gossamer.device.registry import find
from gossamer.io import charts
from gossamer.plan.store.tuning_cache import file_name, tuning_folder
from gossamer_bench import peaks, serve_verb
from gossamer_bench import verb as verb_module
from gossamer_bench.row_files import KEYS, read_rows
from gossamer_bench.suites import catalogue
from gossamer_bench.suites.networks import network_case
from gossamer_bench.work import Files, Item


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path_factory.mktemp("cache")))

    def suite(batch: int, files: Files) -> list[Item]:
        return [Item("tiny", name, batch, lambda setting, name=name: network_case(
                    "tiny", dataclasses.replace(tiny(), name=name), batch, setting))
                for name in ("tiny", "little")]

    monkeypatch.setitem(catalogue.SUITES, "tiny", suite)
    monkeypatch.setattr(peaks, "measure_peaks", lambda device, precisions: PEAKS)


def bench(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_the_help_names_every_suite() -> None:
    (argument,) = get_type_hints(verb_module.bench, include_extras=True)["suites"].__metadata__
    assert argument.help.partition(";")[0].split(", ") == [
        *(name for name in catalogue.SUITES if name != "tiny"), "timm", "serve"]


def test_rows_table_and_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/gossamer", "bench", "tiny", "--batch", "1,2"])
    path, readme = tmp_path / "host" / "tiny.jsonl", tmp_path / "README.md"
    result = bench("tiny", "--device", "host", "--batch", "1,2", "--against",
                 "torch-graph,onnxruntime", "-o", path, "--commit", "abc")
    assert result.exit_code == 0, result.output
    (heading,) = [line for line in result.stdout.splitlines() if line.startswith("tiny, batch 2:")]
    assert float(heading.split(", took ")[1].removesuffix(" s")) > 0
    assert "absent: torch-graph: " in result.stdout
    rows = read_rows(path)
    assert {row.batch for row in rows if row.contender == "gossamer"} == {1, 2}
    assert {row.commit for row in rows} == {"abc"} and len({row.run_id for row in rows}) == 1
    assert rows[0].command == "gossamer bench tiny --batch 1,2"
    readme.write_text("<!-- bench:tiny -->\n<!-- /bench -->\n")
    assert bench("--table", tmp_path / "host", "--into", readme).exit_code == 0
    assert bench("--table", path).stdout.strip() in readme.read_text()


def test_json() -> None:
    result = bench("tiny", "--device", "host", "--batch", "1", "--against", "none", "--json",
                 "--case", "tin")
    document = json.loads(result.stdout)
    ((row,),) = [result["rows"] for result in document["results"]]
    assert tuple(row) == KEYS and document["peak_flops"] == PEAKS.flops


def test_a_bad_file_of_measurements_is_told_once() -> None:
    words = ("tiny", "--device", "host", "--batch", "1", "--against", "none", "--precision",
             "fp32,fp16", "--json", "--case", "tin")
    path = tuning_folder() / file_name(find("host"))
    path.parent.mkdir()
    path.write_text("{}")
    result = bench(*words)
    assert result.exit_code == 0 and json.loads(result.stdout)["results"]
    assert result.stderr.count(f"{path} is corrupt or cut short") == 1
    assert "corrupt" not in bench(*words).stderr


def test_csv_plot_filter_and_summary(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows, sheet, picture = (tmp_path / name for name in ("rows.jsonl", "rows.csv", "rows.png"))
    result = bench("tiny", "--device", "host", "--batch", "2", "--against", "onnxruntime",
                   "-o", rows, "--csv", sheet, "--plot", picture)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if "geometric mean" in line]
    assert line.startswith("tiny, batch 2, fp32, ") and "over 2 cases" in line
    with open(sheet) as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [*KEYS, "share_of_light"]
    assert [line["case"] for line in lines] == [row.case for row in read_rows(rows)]
    assert picture.read_bytes().startswith(b"\x89PNG")

    again, part = tmp_path / "again" / "rows.png", tmp_path / "part.csv"
    result = bench("--table", rows, "--case", "lit", "--plot", again, "--csv", part)
    assert result.exit_code == 0 and again.stat().st_size > 0
    with open(part) as file:
        assert {line["case"] for line in csv.DictReader(file)} == {"little"}
    assert "little" not in bench("--table", rows, "--case", "tin").stdout
    assert "has no rows of gemm; its suites: tiny" in bench("gemm", "--table", rows).stderr
    assert "leave SUITE and --case out" in bench("--table", rows, "--case", "tin", "--into",
                                                 tmp_path / "README.md").stderr


def test_precisions_come_in_their_order(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "rows.jsonl"
    result = bench("tiny", "--device", "host", "--batch", "2", "--against", "torch-eager", "--case",
                 "tin", "--precision", "fp16,fp32", "-o", path)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("fp")] == ["fp32", "fp16"]
    assert {(row.contender, row.precision) for row in read_rows(path)} == {
        ("gossamer", "fp32"), ("torch-eager", "fp32"), ("torch-eager", "fp16")}


@pytest.mark.parametrize(("forced", "choice_only"), [
    ("none", True), ("unfused", True), ("published", False), ("unfused,published", False)])
def test_plans_without_fusions_are_measured_as_compile_does(
        forced: str, choice_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        asked.append(options["choice_only"])
        return tuners(*arguments, **options)

    tuners = work.tuners
    monkeypatch.setattr(work, "tuners", recorded)
    result = bench("tiny", "--device", "host", "--batch", "1", "--against", "none", "--forced",
                   forced)
    assert result.exit_code == 0, result.output
    assert asked == [choice_only]


def test_markdown_of_what_was_measured() -> None:
    result = bench("tiny", "--device", "host", "--batch", "1", "--against", "none", "--markdown")
    assert result.stdout.startswith("**little, fp32, ") and "**tiny, fp32, " in result.stdout


def test_without_matplotlib_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts.importlib.util, "find_spec", lambda name: None)
    result = bench("tiny", "--device", "host", "--plot", tmp_path / "rows.png")
    assert result.exit_code == 2 and "pip install matplotlib" in result.stderr
    assert not result.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "reason"), [
    ((), "no suite given; there are: mobilenet"),
    (("yolo",), "no suite 'yolo'"),
    (("tiny", "--batch", "0"), "--batch 0: expected sizes of 1 or more"),
    (("tiny", "--batch", "one"), "--batch one"),
    (("tiny", "--against", "caffe"), "no peer 'caffe'; expected some of torch-eager"),
    (("tiny", "--forced", "caffe"), "--forced caffe: no algorithm 'caffe'; expected some of"),
    (("tiny", "--precision", "fp8"), "--precision fp8: expected some of fp32, tf32, fp16"),
    (("tiny", "-o", "rows.csv"), "ends in .jsonl"),
    (("timm",), "name networks, such as --models"),
    (("timm", "--models", "tiny", "-o", "rows.jsonl"), "expected a name that ends in .csv"),
    (("tiny", "--precision", "fp32,"), "--precision fp32,: expected some of fp32, tf32, fp16"),
    (("tiny", "--model", "x.onnx"), "--model x.onnx: goes with the suite networks"),
    (("tiny", "--data", "x"), "--data x: goes with the suite sparse-layers, sparse-networks or "
                               "tuning"),
    (("tiny", "--sparsity", "0.8"), "--sparsity 0.8: goes with the suite sparse-layers"),
    (("sparse-layers", "--sparsity", "85"), "--sparsity 85: expected a share of zeros, like 0.85"),
    (("networks", "--model", "x.onnx"), "x.onnx"),
    (("tiny", "--device", "tpu:0"), "there is no device 'tpu:0'"),
    (("tiny", "--into", "README.md"), "--into goes with --table"),
    (("tiny", "--case", "big"), "--case big: no case of tiny has that in its name; there are: "
                                "tiny, little"),
    (("tiny", "--effort", "some"), "--effort some: expected quick, normal, max"),
    (("tiny", "--plan-budget", "0"), "--plan-budget 0: expected seconds above 0"),
    (("tiny", "--csv", "rows.txt"), "--csv rows.txt: expected a name that ends in .csv"),
    (("tiny", "--plot", "rows.svg"), "--plot rows.svg: expected a name that ends in .png"),
    (("tiny", "--json", "--markdown"), "give one of them"),
    (("--table", "no-such-file"), "no-such-file: cannot be read"),
])
def test_bad_input_is_one_line(words: tuple[str, ...], reason: str) -> None:
    result = bench(*words)
    assert result.exit_code == 2 and not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and reason in line


def test_simulators_are_not_measured() -> None:
    from tests.fixtures import is_slow, working_devices

    slow = [device.name for device in working_devices().values() if is_slow(device)]
    if not slow:
        pytest.skip("no simulator works here")
    assert "times mean nothing" in bench("tiny", "--device", slow[0]).stderr


@pytest.mark.parametrize(("read", "text", "value"), [
    (verb_module._forced, None, None), (verb_module._forced, "none", []),
    (verb_module._forced, "dense,unfused", ["dense", "unfused"]),
    (serve_verb._rates, "0.5,8", [0.5, 8.0]), (serve_verb._servers, "none", ["gossamer"]),
    (serve_verb._servers, None, ["gossamer", "litserve", "fastapi", "empty"]),
    (serve_verb._servers, "litserve", ["gossamer", "litserve"])])
def test_values_of_options(read: Callable[[Any], Any], text: str | None, value: Any) -> None:
    found = read(text)
    assert (found if found is None else list(found)) == value
