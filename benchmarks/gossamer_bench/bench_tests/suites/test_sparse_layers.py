"""Tests of the suite of pruned layers: its cases, and one of them with every contender."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench_tests.conftest import PEAKS, setting
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer_bench import contest
from gossamer_bench.suites.catalogue import select
from gossamer_bench.work import Case
from tests.bench.verb import tiny_folder
from tests.fixtures import is_slow
from tests.tolerances import tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")
FORMS = {f"gossamer:direct_sparse/{form}" for form in ("untiled", "tiled")}


def tiny_case(device: Device, folder: Path) -> Case:
    (item,) = select(["sparse-layers"], [3], "tiny", data=tiny_folder(folder))
    assert item.is_layer and item.suite == "sparse-layers"
    return item.make(setting(device, folder))


def test_the_folder_is_needed() -> None:
    with pytest.raises(InputError, match="suite sparse-layers: needs --data FOLDER"):
        select(["sparse-layers"], [1])
    with pytest.raises(InputError, match="--data x: goes with the suite sparse-layers"):
        select(["gemm"], [1], data=Path("x"))


def test_every_case_has_every_batch(tmp_path: Path) -> None:
    items = select(["sparse-layers"], [1, 64], data=tiny_folder(tmp_path))
    assert len({(item.name, item.batch) for item in items}) == len(items) == 2 * (1 + 5 + 6 + 108)
    assert items[0].name == "tiny/3x3" and {item.batch for item in items} == {1, 64}


def test_layers_of_some_sparsity_and_some_names(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    two = select(["sparse-layers"], [1], "tiny,alexnet/conv3", data=folder)
    assert {item.name for item in two} == {"tiny/3x3", "alexnet/conv3"}
    (tiny,) = select(["sparse-layers"], [1], "tiny", data=folder, sparsity=0.79)
    assert tiny.name == "tiny/3x3"
    both = select(["sparse-layers", "gemm"], [1], "tiny/3x3,4096,", data=folder, sparsity=0.79)
    assert {item.name for item in both} == {"tiny/3x3", "4096"}  # cases without a sparsity stay
    for suites in (["sparse-layers"], ["sparse-layers", "gemm"]):
        with pytest.raises(InputError, match=r"--sparsity 0\.81: no layer has so many"):
            select(suites, [1], "tiny/3x3,4096", data=folder, sparsity=0.81)


def test_zeros_are_no_work(tmp_path: Path) -> None:
    case = tiny_case(find("host"), tmp_path)
    weights = 12 * 4 * 9
    nonzeros = round(0.2 * weights)
    outputs = 3 * 12 * 49
    assert case.density == nonzeros / weights
    assert case.flops == 2 * 3 * 49 * nonzeros + 2 * outputs
    assert case.least_bytes == 4 * (nonzeros + 12 + 3 * 8 * 49 + outputs)


def test_both_published_forms_take_part(device: Device, tmp_path: Path) -> None:
    if is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    case = dataclasses.replace(tiny_case(device, tmp_path), sample_us=200.0)
    result = contest.run(case, PEAKS, STAMP)
    assert not result.failed
    rows = {row.contender: row for row in result.rows}
    assert all(row.density == case.density and row.error < tolerance("network")
               for row in result.rows)
    if not device.compiles:
        assert rows.keys() == {"gossamer", "gossamer:host_im2col", "gossamer:host_direct"}
        assert result.absent.keys() >= FORMS
        return
    assert rows.keys() >= {"gossamer", "gossamer:im2col_gemm", "gossamer:direct_sparse", *FORMS}
    for form in FORMS:
        assert f"variant={form.split('/')[1]} " in rows[form].config


def test_a_form_that_is_not_there_is_absent(tmp_path: Path) -> None:
    case = tiny_case(find("host"), tmp_path)
    with pytest.raises(AbsentError, match="needs a device that compiles"):
        case.contenders["gossamer:direct_sparse/tiled"]()
