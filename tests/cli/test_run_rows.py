"""The verb `run` on folders of pictures and on tables: a row for each input."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from PIL import Image
from pyarrow import parquet

import gossamer
from gossamer import InputFormat
from gossamer.io import output_files, picture_batches
from tests.cli.command_line import (
    QUIET_MAIN,
    fails,
    gossamer_cli,
    json_of,
    save_network,
    succeeds,
)
from tests.cli.picture_folders import (
    BROKEN,
    RNG,
    are_same,
    command_of,
    picture_files,
    rows_of,
    save_picture,
    save_pictures,
    table_of,
)
from tests.processes import runs, until
from tests.tolerances import normalised_error, tolerance


def test_a_folder_becomes_a_row_a_picture_in_the_order_of_their_names(tiny, folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    result = succeeds(*command_of(tiny, folder, "-o", out, "--top", 2))
    assert "42 pictures in" in result.stdout and "2 could not be read" in result.stdout
    assert "per second" in result.stdout and f"written: {out}" in result.stdout
    notice, warning = result.stderr.splitlines()
    assert notice == "notice: 2 files skipped: not image files by their suffix"
    assert warning.startswith("warning: 2 of 42 cannot be read") and "07.png" in warning
    rows = rows_of(out)
    assert [row["file"] for row in rows] == list(map(str, picture_files(folder)))
    readable = [row for row in rows if "error" not in row]
    for row in rows:
        name = os.path.relpath(row["file"], folder)
        assert row.get("error", "").startswith(BROKEN.get(name, "")) and (
            ("error" in row) == (name in BROKEN))
    alone = json_of(*command_of(tiny, *[row["file"] for row in readable], "--top", 2))["results"]
    for row, answer in zip(readable, alone, strict=True):
        assert answer["input"] == row["file"]
        for line, other in zip(row["classes"], answer["top"], strict=True):
            assert line["class"] == other["class"] and line["name"] == other["name"]
            assert line["probability"] == pytest.approx(other["probability"], rel=1e-5)


def test_every_kind_of_file_says_the_same(tiny, folder, tmp_path):
    (tmp_path / "names").write_text("ant\nbee\ncat\ndog, big\nelk\n")
    named = ("--labels", tmp_path / "names", "--batch", 5)
    for suffix in ("jsonl", "csv", "npy"):
        succeeds(*command_of(tiny, folder, "-o", tmp_path / f"rows.{suffix}", *named))
    documents, table = rows_of(tmp_path / "rows.jsonl"), table_of(tmp_path / "rows.csv")
    scores = np.load(tmp_path / "rows.npy")
    assert scores.shape == (42, 5) and scores.dtype == np.float32
    for document, line, row in zip(documents, table, scores, strict=True):
        assert line["file"] == document["file"]
        assert line["error"] == document.get("error", "")
        assert np.isnan(row).all() == ("error" in document)
        for rank, answer in enumerate(document.get("classes", ()), 1):
            assert line[f"class_{rank}"] == str(answer["class"])
            assert line[f"name_{rank}"] == answer["name"]
            assert float(line[f"probability_{rank}"]) == answer["probability"]
        if "classes" in document:
            assert [answer["class"] for answer in document["classes"]] == np.argsort(-row).tolist()


def test_parquet(tiny, folder, tmp_path, monkeypatch):
    for suffix in ("jsonl", "parquet"):
        succeeds(*command_of(tiny, folder, "-o", tmp_path / f"rows.{suffix}"))
    for line, document in zip(parquet.read_table(tmp_path / "rows.parquet").to_pylist(),
                              rows_of(tmp_path / "rows.jsonl"), strict=True):
        assert line["file"] == document["file"] and line["error"] == document.get("error")
        if "classes" in document:
            assert line["probability_1"] == document["classes"][0]["probability"]
    monkeypatch.setattr(output_files, "find_spec", lambda name: None)
    line = fails(2, *command_of(tiny, folder, "-o", tmp_path / "none.parquet"))
    assert "needs pyarrow: pip install '.[tables]' in gossamer's checkout" in line
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99, 1.0])
def test_rows_that_end_early_are_continued(tiny, folder, tmp_path, suffix, share):
    whole, part = tmp_path / f"whole.{suffix}", tmp_path / f"part.{suffix}"
    succeeds(*command_of(tiny, folder, "-o", whole))
    content = whole.read_bytes()
    part.write_bytes(content[:int(len(content) * share)])
    result = succeeds(*command_of(tiny, folder, "-o", part, "--resume"))
    assert are_same(part.read_bytes(), content)
    rows_before = content[:int(len(content) * share)].count(b"\n") - (suffix == "csv")
    assert ("rows existed already" in result.stdout) == (rows_before > 0)
    if rows_before > 0:
        assert f"{42 - rows_before} pictures in" in result.stdout
    # without --resume the file is written anew
    succeeds(*command_of(tiny, folder, "-o", part))
    assert are_same(part.read_bytes(), content)


def test_names_of_files_that_need_quotes_are_continued(tiny, tmp_path):
    folder = save_pictures(tmp_path / "odd", 'a "quoted", name.png', "b\nline.png", "c.png",
                           os.fsdecode(b"d\xff.png"))
    whole = tmp_path / "whole.csv"
    succeeds(*command_of(tiny, folder, "-o", whole))
    content = whole.read_bytes()
    for end in range(0, len(content), 37):
        (tmp_path / "part.csv").write_bytes(content[:end])
        succeeds(*command_of(tiny, folder, "-o", tmp_path / "part.csv", "--resume"))
        assert are_same((tmp_path / "part.csv").read_bytes(), content)


def test_outputs_that_score_no_classes_are_written_as_numbers(tmp_path):
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]),
             helper.make_node("Flatten", ["p"], ["y"]),
             helper.make_node("ReduceMax", ["x"], ["z"], axes=[1, 2, 3], keepdims=0)]
    net = save_network(tmp_path / "two.onnx", nodes=nodes, weights={},
                       outputs=(("z", ["N"]), ("y", ["N", 3])))
    folder = save_pictures(tmp_path / "photos", "0.png", "1.png", "2.png")
    for suffix in ("jsonl", "csv", "parquet"):
        succeeds(*command_of(net, folder, "-o", tmp_path / f"rows.{suffix}"))
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert [str(kind) for kind in table.schema.types] == [
        "string", "string", "list<element: float>", "list<element: float>"]
    np.testing.assert_allclose(
        [line["y"] for line in table.to_pylist()],
        [line["outputs"]["y"] for line in rows_of(tmp_path / "rows.jsonl")], rtol=1e-6)
    table = table_of(tmp_path / "rows.csv")
    assert list(table[0]) == ["file", "error", "z", "y_0", "y_1", "y_2"]
    for document, line in zip(rows_of(tmp_path / "rows.jsonl"), table, strict=True):
        assert float(line["z"]) == document["outputs"]["z"]
        assert [float(line[f"y_{index}"]) for index in range(3)] == document["outputs"]["y"]
    line = fails(2, *command_of(net, folder, "-o", tmp_path / "rows.npy"))
    assert "the network has 2 outputs" in line


def test_an_output_that_is_not_finite_is_said_in_its_row(tmp_path):
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]),
             helper.make_node("Flatten", ["p"], ["f"]), helper.make_node("Log", ["f"], ["y"])]
    net = save_network(tmp_path / "log.onnx", nodes=nodes, weights={}, outputs=(("y", ["N", 3]),))
    folder = save_pictures(tmp_path / "photos", "a.png", "c.png")
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "black.png")
    result = succeeds(*command_of(net, folder, "-o", tmp_path / "rows.csv"))
    assert "1 of 3 have an output with NaN or infinite values" in result.stderr
    a, black, c = table_of(tmp_path / "rows.csv")
    assert "NaN or infinite" in black["error"] and not black["class_1"]
    assert a["class_1"] and c["class_1"] and not a["error"]


def test_pictures_of_many_sizes_run_in_batches_of_one_size(tmp_path):
    net = save_network(tmp_path / "open.onnx", inputs=("N", 3, "H", "W"))
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, side in enumerate([9, 9, 12, 12, 9]):
        save_picture(folder / f"{index}.png", side, side)
    rows = tmp_path / "rows.jsonl"
    succeeds(*command_of(net, folder, "-o", rows, "--batch", "2"))
    succeeds(*command_of(net, *sorted(folder.iterdir()), "-o", tmp_path / "one_by_one.jsonl"))
    assert [len(row["classes"]) for row in rows_of(rows)] == [5] * 5
    assert _scores(rows) == pytest.approx(_scores(tmp_path / "one_by_one.jsonl"), rel=1e-5)
    line = fails(2, *command_of(net, folder, "--device", "host,host"))
    assert "dimension 2 (H) open; set it with --shape x=3,SIZE,SIZE" in line


def _scores(rows):
    return [line["probability"] for row in rows_of(rows) for line in row["classes"]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_network_that_keeps_the_size_of_pictures(dtype, tmp_path):
    net = save_network(tmp_path / "open.onnx", inputs=("N", 3, "H", "W"), dtype=dtype,
                       nodes=[helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
                       outputs=(("y", ["N", 4, "H", "W"]),))
    sides = range(5, 15)
    files = [tmp_path / f"{side:02}.png" for side in sides]
    for side, file in zip(sides, files, strict=True):
        save_picture(file, side, side + 1)
    words = command_of(net)
    text = succeeds(*words, *files).stdout
    assert all(f"{file}: y [" in text for file in files) and "10 pictures" in text
    rows = tmp_path / "rows.jsonl"
    succeeds(*words, *files, "-o", rows)
    assert [np.shape(row["outputs"]["y"]) for row in rows_of(rows)] == [
        (4, side, side + 1) for side in sides]
    line = gossamer_cli(*words, *files, "-o", tmp_path / "rows.npy").stderr
    assert "06.png has shape 4x6x7, but that of earlier inputs has 4x5x6" in line
    assert not (tmp_path / "rows.npy").exists()
    succeeds(*words, *files, "-o", tmp_path / "rows.npy", "--size", "8")
    y = np.load(tmp_path / "rows.npy")
    assert y.shape == (10, 4, 8, 8) and y.dtype == dtype


def test_a_plan_of_a_network_takes_pictures_in_its_own_form(tiny, folder, tmp_path):
    rows = {}
    for name, form in (("bytes", InputFormat("uint8", "NHWC", scale=1 / 255)), ("floats", None)):
        plan = gossamer.compile(str(tiny), "host", inputs=form)
        plan.save(tmp_path / f"{name}.plan")
        succeeds("run", tmp_path / f"{name}.plan", folder, "--preprocess", "unit",
                 "-o", tmp_path / f"{name}.npy")
        rows[name] = np.load(tmp_path / f"{name}.npy")
    readable = ~np.isnan(rows["floats"]).any(axis=1)
    assert readable.sum() == 40
    np.testing.assert_allclose(rows["bytes"][readable], rows["floats"][readable], rtol=1e-4)


def test_rows_on_stdout(tiny, folder):
    lines = succeeds(*command_of(tiny, folder)).stdout.splitlines()
    assert lines[0].startswith("device: host") and lines[-1].startswith("42 pictures in")
    assert len(lines) == 44
    assert f"{folder}/a/07.png: not a readable image" in lines[8]
    assert lines[1].startswith(f"{folder}/a/00.png: ") and "% class " in lines[1]
    document = json_of(*command_of(tiny, folder))
    assert [row["file"] for row in document["results"]] == list(map(str, picture_files(folder)))
    assert document["unreadable"] == 2 and document["rows"] == 42
    assert document["a_second"] > 0


def test_folders_and_files_together(tiny, folder, tmp_path):
    single = tmp_path / "single.png"
    save_picture(single)
    succeeds(*command_of(tiny, single, folder / "a" / "deep", single, "-o", tmp_path / "r.jsonl"))
    assert [row["file"] for row in rows_of(tmp_path / "r.jsonl")] == [
        str(single), str(folder / "a" / "deep" / "00.png"), str(folder / "a" / "deep" / "01.png")]


def test_many_pictures_of_which_some_are_damaged(tiny, tmp_path):
    folder = save_pictures(tmp_path / "many", "0.png")
    content = (folder / "0.png").read_bytes()
    for index in range(1, 1500):
        (folder / f"{index}.png").write_bytes(content[:60] if index % 300 == 7 else content)
    out = tmp_path / "rows.jsonl"
    result = succeeds(*command_of(tiny, folder, "-o", out))
    rows = rows_of(out)
    assert "1500 pictures" in result.stdout and "5 could not be read" in result.stdout
    assert sorted(row["file"] for row in rows if "error" in row) == sorted(
        str(folder / f"{index}.png") for index in range(7, 1500, 300))
    assert len({json.dumps(row["classes"]) for row in rows if "classes" in row}) <= 2


def test_processes_that_read_pictures_make_the_same_rows(tiny, folder, tmp_path, monkeypatch):
    for name in ("threads", "processes"):
        for suffix in ("jsonl", "npy"):
            succeeds(*command_of(tiny, folder, "-o", tmp_path / f"{name}.{suffix}"))
        for constant in ("_PROCESSORS", "_FILES"):
            monkeypatch.setattr(picture_batches, constant, 1)
    assert are_same((tmp_path / "processes.jsonl").read_bytes(),
                     (tmp_path / "threads.jsonl").read_bytes())
    rows = np.load(tmp_path / "processes.npy")
    np.testing.assert_allclose(rows, np.load(tmp_path / "threads.npy"), rtol=1e-5)
    assert np.flatnonzero(np.isnan(rows).all(axis=1)).tolist() == [
        index for index, path in enumerate(picture_files(folder))
        if os.path.relpath(path, folder) in BROKEN]


@pytest.fixture
def dense(tmp_path):
    """A network of three numbers."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    return save_network(tmp_path / "dense.onnx", nodes=nodes, inputs=("N", 3),
                        outputs=(("y", ["N", 2]),), weights={"w": RNG.standard_normal((2, 3))})


@pytest.mark.parametrize("form", ["plain", "first", "last"])
def test_samples_of_a_table_become_rows(dense, tmp_path, form):
    x = RNG.standard_normal((50, 3)).astype(np.float32)
    with open(tmp_path / "samples.csv", "w") as file:
        file.write("a,b,c\n" if form == "plain" else "label,a,b,c\n" if form == "first"
                   else "a,b,c,class\n")
        for index, row in enumerate(x):
            cells = list(map(str, row.tolist()))
            label = [f"kind {index % 3}"]
            file.write(",".join({"plain": cells, "first": label + cells, "last": cells + label}[
                form]) + "\n")
    label = ("--label", "last") if form == "last" else ()
    out = tmp_path / "out.csv"
    result = succeeds("run", dense, tmp_path / "samples.csv", "--device", "host", "-o", out,
                      "--batch", 7, *label)
    assert "50 samples in" in result.stdout
    assert ("is used as labels" in result.stderr) == (form != "plain")
    table = table_of(out)
    (expected,) = ReferenceEvaluator(str(dense)).run(None, {"x": x})
    y = np.float32([[line["y_0"], line["y_1"]] for line in table])
    assert normalised_error(y, expected) <= tolerance("network")
    assert [line["sample"] for line in table] == list(map(str, range(50)))
    if form != "plain":
        assert [line["label"] for line in table] == [f"kind {index % 3}" for index in range(50)]
    whole = out.read_bytes()
    out.write_bytes(whole[:len(whole) // 2])
    succeeds("run", dense, tmp_path / "samples.csv", "--device", "host", "-o", out, "--batch", 7,
             *label, "--resume")
    assert len(out.read_text().splitlines()) == 51


def test_a_table_without_labels_has_the_columns_of_the_one_trained_on(tmp_path):
    """A network that was trained on a table with gaps and texts takes rows that have no label."""
    rows = [f"{'yes' if index % 2 else 'no'},{index % 2 * 5 + 1},{'ab'[index % 2]}"
            for index in range(40)]
    (tmp_path / "people.csv").write_text("\n".join(["buys,age,city", *rows, "no,,a"]) + "\n")
    net = tmp_path / "net.onnx"
    succeeds("train", tmp_path / "people.csv", "--impute", "zero", "--one-hot", "--device", "host",
             "--epochs", "30", "-o", net)
    (tmp_path / "new.csv").write_text("city,age\na,1\nb,6\na,\n")
    out = tmp_path / "rows.csv"
    succeeds("run", net, tmp_path / "new.csv", "--device", "host", "-o", out)
    assert [row["name_1"] for row in table_of(out)] == ["no", "yes", "no"]


def test_a_folder_of_damaged_pictures(tiny, tmp_path):
    (tmp_path / "damaged").mkdir()
    for index in range(2):
        (tmp_path / "damaged" / f"{index}.png").write_bytes(b"x")
    result = gossamer_cli(*command_of(tiny, tmp_path / "damaged", "-o", tmp_path / "rows.csv"))
    assert result.exit_code == 2 and not (tmp_path / "rows.csv").exists()
    assert result.stderr.splitlines()[-1].endswith(
        "0.png: not a readable image; expected PNG, JPEG, BMP, GIF, WEBP, PPM; none of 2 "
        "can be read")


def test_rows_of_a_folder_that_cannot_be_written(tiny, folder, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "is not writable" in fails(2, *command_of(tiny, folder, "-o", locked / "rows.csv"))


def _many(tmp_path, count):
    folder = save_pictures(tmp_path / "photos", "0.png")
    for index in range(1, count):
        (folder / f"{index:04}.png").write_bytes((folder / "0.png").read_bytes())
    return folder


def _start(words, program=QUIET_MAIN, **options):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "npy"])
def test_a_full_disk_leaves_rows_to_continue_or_nothing(tiny, tmp_path, suffix):
    folder, out = _many(tmp_path, 300), tmp_path / f"rows.{suffix}"

    def small_files():
        # beyond this size writing fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = command_of(tiny, folder, "--batch", 4, "-o", out)
    process = _start(words, preexec_fn=small_files)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"error: --output {out}: cannot be written: File too large" in err
    assert ("--resume continues the file" in err) == (suffix != "npy")
    if suffix == "npy":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "tiny.onnx"]
        return
    assert 0 < out.stat().st_size <= 4096
    succeeds(*words, "--resume")
    part = out.read_bytes()
    succeeds(*words)
    assert are_same(part, out.read_bytes()) and part.count(b"\n") == 300 + (suffix == "csv")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_continued(tiny, tmp_path, name):
    folder, out = _many(tmp_path, 3000), tmp_path / "rows.jsonl"
    words = command_of(tiny, folder, "--batch", 4, "-o", out)
    process = _start(words)
    until(lambda: out.exists() and out.stat().st_size > 2000)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if name == "SIGINT" else 143), err
    assert err.splitlines()[-1] == f"error: {'interrupted' if name == 'SIGINT' else 'terminated'}"
    rows = rows_of(out)
    assert 0 < len(rows) < 3000
    result = succeeds(*words, "--resume")
    assert f"{len(rows)} rows existed already" in result.stdout
    assert [row["file"] for row in rows_of(out)] == list(map(str, picture_files(folder)))


def test_a_run_that_is_killed_leaves_rows_to_continue_and_no_process(tiny, tmp_path):
    folder, out = _many(tmp_path, 3000), tmp_path / "rows.jsonl"
    words = command_of(tiny, folder, "--batch", 4, "-o", out)
    process = _start(words, "from gossamer.io import picture_batches as module; "
                            f"module._PROCESSORS = module._FILES = 1; {QUIET_MAIN}")
    until(lambda: out.exists() and out.stat().st_size > 2000)
    readers = [int(pid) for task in Path(f"/proc/{process.pid}/task").iterdir()
               for pid in (task / "children").read_text().split()]
    process.kill()
    process.communicate(timeout=60)
    assert readers
    until(lambda: not any(map(runs, readers)))
    assert 0 < out.read_text().count("\n") < 3000
    succeeds(*words, "--resume")
    assert [row["file"] for row in rows_of(out)] == list(map(str, picture_files(folder)))
