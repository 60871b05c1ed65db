import copy
import errno
import json
import os
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import gossamer
from gossamer.device.kernel_cache import cached
from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Measurement
from gossamer.plan.store.database import read
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.store.tuning_file import parse, text
from tests.cli import command_line
from tests.cli.command_line import succeeds
from tests.plan.store.tuning_cache.measurements import fill_disk

NAME = OPS["gemm"].algorithms[0].name
ABACUS = {"name": "opencl:7", "api": "opencl", "index": 7, "description": "Abacus 3000",
          "driver": "beads 1.0", "toolkit": "", "runs_cuda_libraries": False,
          "limits": SimpleNamespace(compute_units=4)}


class Abacus(SimpleNamespace):
    """Returns a device with the fields that the cache's keys are made of."""

    __hash__ = object.__hash__


def fill(device, *rows):
    stored = TuningCache(device)
    for m in rows:
        stored.put({GemmProblem(m, 2, 3): [
            Measurement(NAME, f"tile={size}", ("row",), ("row",), "fp32", 1.0)
            for size in (8, 16)]})
    stored.put_plans({"key": ("small, batch 1", Timing(9.0, 8.0, 10.0, 20))})
    return stored.path


@pytest.fixture
def full(own_cache):
    """A cache with measurements of two devices and by two drivers, a bad file, and two kernels."""
    host = fill(find("host"), 1)
    abacus = fill(Abacus(**ABACUS), 1, 2)
    fill(Abacus(**{**ABACUS, "driver": "beads 2.0"}), 1)
    bad = abacus.with_name(abacus.name + ".corrupt-2")
    bad.write_text("bad")
    for key in ("one", "two"):
        cached((key,), lambda: b"kernel")
    return SimpleNamespace(host=host, abacus=abacus, bad=bad)


def run(*words):
    result = succeeds("cache", *words)
    assert result.stderr == ""
    return result.stdout


def test_nothing_there(own_cache):
    assert run("list").splitlines() == [f"folder: {own_cache}", "no measurements",
                                        "0 compiled kernels, 0 B of at most 1 GiB"]
    assert json.loads(run("list", "--json")) == {
        "folder": str(own_cache), "measurements": [], "kernels": {
            "number": 0, "bytes": 0, "most_bytes": 2**30}}
    assert run("clear", "--kernels").splitlines() == [
        f"no measurements in {own_cache / 'tuning'}", "removed 0 compiled kernels, 0 B"]
    assert not own_cache.exists()


def test_list(full):
    lines = run("list").splitlines()
    (line,) = [line for line in lines if full.host.name in line]
    assert find("host").description in line and f"gossamer {gossamer.__version__}" in line
    assert sum("beads 1.0" in line for line in lines) == 1
    assert sum("beads 2.0" in line for line in lines) == 1
    assert any(full.bad.name in line and "set aside: corrupt" in line for line in lines)
    assert lines[-1].startswith("2 compiled kernels")


def test_list_as_json(full):
    listed = json.loads(run("list", "--json"))
    files = {entry.pop("file"): entry for entry in listed["measurements"]}
    assert set(files) == {full.host.name, full.abacus.name, full.bad.name}
    assert files[full.abacus.name] == {
        "bytes": full.abacus.stat().st_size, "device": "Abacus 3000", "layers": 3,
        "candidates": 6, "plans": 2, "problem": None, "sections": [
            {"made_by": f"driver beads {driver}, gossamer {gossamer.__version__}",
             "layers": layers, "candidates": 2 * layers, "plans": 1}
            for driver, layers in (("1.0", 2), ("2.0", 1))]}
    assert files[full.bad.name]["problem"] == "set aside: corrupt"
    assert listed["kernels"] == {"number": 2, "bytes": 2 * 38, "most_bytes": 2**30}


@pytest.mark.parametrize("content, problem", [("{}", "corrupt"), ("", "still empty")])
def test_list_names_bad_files_and_leaves_them(full, content, problem):
    full.abacus.write_text(content)
    assert problem in run("list")
    assert full.abacus.read_text() == content


def test_measurements_of_an_older_gossamer_are_listed_and_cleared(full):
    old = full.host.with_suffix(".json")
    old.write_text("{}")
    assert any(old.name in line and "older gossamer" in line for line in run("list").splitlines())
    assert f"removed {old}: written by an older gossamer, not read" in run("clear").splitlines()
    assert not old.exists()


def test_clear_all(full, own_cache):
    lines = run("clear").splitlines()
    assert f"removed {full.host}: 1 layer, 2 candidates, 1 plan" in lines
    assert f"removed {full.abacus}: 3 layers, 6 candidates, 2 plans" in lines
    assert f"removed {full.bad}: set aside: corrupt" in lines and len(lines) == 3
    assert [name for name in os.listdir(own_cache / "tuning") if not name.startswith(".")] == []
    assert len(list((own_cache / "kernels").iterdir())) == 2


def test_clear_kernels_too(full, own_cache):
    assert "removed 2 compiled kernels, 76 B" in run("clear", "--kernels").splitlines()
    assert list((own_cache / "kernels").iterdir()) == []


def test_clear_one_device(full):
    (line,) = run("clear", "--device", "host").splitlines()
    assert str(full.host) in line
    assert not full.host.exists() and full.abacus.exists() and full.bad.exists()
    (line,) = run("clear", "--device", "host").splitlines()
    assert line.startswith("no measurements of host")


def test_clear_one_file(full):
    run("clear", "--device", full.abacus.name)
    assert full.host.exists() and not full.abacus.exists() and full.bad.exists()


fails = partial(command_line.fails, 2, "cache")


def test_clear_an_unknown_device(full):
    assert "abacus" in fails("clear", "--device", "abacus")
    assert full.host.exists() and full.abacus.exists()


def test_what_cannot_be_removed_is_named(full):
    full.host.unlink()
    full.host.mkdir()
    line = fails("clear", "--device", "host")
    assert f"{full.host}: cannot be removed" in line


def test_a_file_for_a_folder(own_cache):
    own_cache.write_text("mine")
    assert "no measurements" in run("list")
    assert own_cache.read_text() == "mine"


def test_measurements_travel(full, own_cache, tmp_path, monkeypatch):
    file = tmp_path / "host.json"
    assert run("export", file, "--device", "host") == (
        f"written: {file}: 1 layer, 2 candidates, 1 plan of host\n")
    assert parse(file.read_bytes()) == read(full.host)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "another"))
    assert run("import", file, "--device", "host") == (
        "added: 1 layer, 2 candidates, 1 plan for host\n")
    again = tmp_path / "again.json"
    run("export", again, "--device", "host")
    assert again.read_bytes() == file.read_bytes()
    # what is there already stays, and what is imported twice is there once
    fill(find("host"), 7)
    assert run("import", file, "--device", "host") and run("import", file, "--device", "host")
    cache = TuningCache(find("host"))
    assert cache.get(GemmProblem(7, 2, 3)) and cache.get(GemmProblem(1, 2, 3))
    assert "2 layers, 4 candidates, 1 plan" in run("export", file, "--device", "host")


def test_measurements_of_another_machine_are_refused(full, tmp_path):
    before = read(full.host)
    faults = {
        "description": "was measured on Abacus 3000 (host, ",
        "driver": "was measured with driver NumPy 0",
    }
    for key, reason in faults.items():
        content = copy.deepcopy(before)
        if key == "driver":
            content["sections"][0]["made_by"]["driver"] = "NumPy 0"
        else:
            content["device"]["description"] = "Abacus 3000"
        file = tmp_path / "other.json"
        file.write_text(json.dumps(content))
        assert reason in fails("import", file, "--device", "host")
    assert read(full.host) == before


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_what_holds_no_measurements_is_refused(own_cache, tmp_path, content):
    file = tmp_path / "bad.json"
    file.write_text(content)
    assert str(file) in fails("import", file, "--device", "host")
    assert not own_cache.exists()


def test_what_cannot_be_exported_or_imported_is_named(own_cache, tmp_path):
    assert "no measurements of host" in fails("export", tmp_path / "a.json", "--device", "host")
    assert not list(tmp_path.iterdir())
    assert "No such file" in fails("import", tmp_path / "absent.json", "--device", "host")
    fill(find("host"), 1)
    assert "absent" in fails("export", tmp_path / "absent" / "a.json", "--device", "host")
    assert "is a folder" in fails("export", tmp_path, "--device", "host")
    assert "expected a file name" in fails("export", "-", "--device", "host")
    assert "not a regular file" in fails("import", tmp_path, "--device", "host")


def test_a_full_disk_is_named(full, own_cache, tmp_path, monkeypatch):
    file = tmp_path / "host.json"
    run("export", file, "--device", "host")
    before = file.read_bytes()
    monkeypatch.setattr("gossamer.io.output_files.os.replace",
                        Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert fails("export", file, "--device", "host").endswith(
        f"export {file}: cannot be written: No space left on device")
    assert file.read_bytes() == before
    stored = read(full.host)
    fill_disk(monkeypatch)
    content = parse(before)
    content["sections"][0]["checks"] = {str(number): "x" * 100 for number in range(2000)}
    file.write_bytes(text(content))
    assert f"{full.host} cannot be written (database or disk is full)" in fails(
        "import", file, "--device", "host")
    assert read(full.host) == stored


def test_only_what_gossamer_writes_is_imported(full, tmp_path):
    content = read(full.host)
    content["sections"][0]["colour"] = content["colour"] = "red"
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(content))
    full.host.unlink()
    run("import", file, "--device", "host")
    assert "colour" not in text(read(full.host)).decode()
