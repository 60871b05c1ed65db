"""Tests of the suite of convolutions of signs: one of them with every contender."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench_tests.conftest import PEAKS, NvidiaDevice, setting
from gossamer.bench.rows import Stamp
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench import contest
from gossamer_bench.layer_tables import BINARY, ConvLayer
from gossamer_bench.suites.binary_layers import INT8, binary_case
from gossamer_bench.suites.catalogue import select
from gossamer_bench.work import Case
from tests.fixtures import is_slow

STAMP = Stamp({}, "gossamer bench", None, "run")
TINY = ConvLayer("tiny", 64, 5, 40, 3, 2, 1)


def tiny_case(device: Device, folder: Path) -> Case:
    return dataclasses.replace(
        binary_case("binary-layers", TINY, 3, setting(device, folder, ["torch-eager"])),
        sample_us=200.0)


def test_the_layers_are_those_of_the_tables() -> None:
    items = select(["binary-layers"], [1, 128])
    assert {(item.name, item.batch) for item in items} == {
        (layer.name, batch) for layer in BINARY for batch in (1, 128)}
    assert all(layer.channels % 64 == 0 for layer in BINARY)


def test_every_contender_computes_the_signs(device: Device, tmp_path: Path) -> None:
    if is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    case = tiny_case(device, tmp_path)
    result = contest.run(case, PEAKS, STAMP)
    assert not result.failed
    rows = {row.contender: row for row in result.rows}
    own = {"gossamer", "gossamer/fp16"}
    assert own < rows.keys()
    for name, row in rows.items():
        assert row.error == 0
        assert (row.precision == "b1") == name.startswith("gossamer")
    assert "packed" in rows["gossamer"].layout and rows["gossamer/fp16"].layout == "NHWC"


def test_a_wrong_sign_is_found(tmp_path: Path) -> None:
    case = tiny_case(find("host"), tmp_path)
    expected = case.expected.copy()
    expected[0, 0, 0, 0] *= -1
    with pytest.raises(RuntimeError, match="the result is wrong"):
        contest.run(dataclasses.replace(case, expected=expected), PEAKS, STAMP)


def test_integers_need_cudnn(tmp_path: Path) -> None:
    case = tiny_case(NvidiaDevice(), tmp_path)
    result = contest.run(case, PEAKS, STAMP)
    assert "cuDNN" in result.absent[INT8]


def test_work_is_counted(tmp_path: Path) -> None:
    case = tiny_case(find("host"), tmp_path)
    assert case.flops == 2 * 3 * 40 * 9 * 64 * 9
    floats = 40 * 64 * 9 + 40 + 3 * 64 * 25 + 3 * 40 * 9
    assert case.bytes_at("b1") == floats * 4 // 32 and case.bytes_at("int8") == floats
