"""Algorithms that are forced with `only`."""

from __future__ import annotations

from pathlib import Path

import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError
from tests.fixtures import is_slow
from tests.plan.small import assert_close, expected, images, save, small


@pytest.mark.parametrize("effort", [None, "quick"])
@pytest.mark.parametrize("only", ["few_rows", "tiled_gemm"])
def test_a_forced_algorithm_is_taken_wherever_it_can_be(
    compiled_device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str,
    effort: str | None
) -> None:
    if effort and is_slow(compiled_device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    plan = gossamer.compile(str(save(small(), tmp_path)), compiled_device, effort=effort,
                            only=only)
    assert_close(plan(images(2)), expected(images(2)))
    (step,) = [step for step in plan.program(2).steps if step.layer.op == "gemm"]
    assert step.algorithm.name == only
    assert f"{only} is forced" in step.rejected.values()


def test_an_algorithm_that_can_compute_nothing_changes_nothing(device: Device,
                                                               tmp_path: Path) -> None:
    path = str(save(small(), tmp_path))
    names = [[step.algorithm.name for step in gossamer.compile(path, device, only=only)
              .program(2).steps] for only in (None, "depthwise")]
    assert names[0] == names[1]


def test_an_unknown_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"only='magic': there is no such algorithm; .*--explain"):
        gossamer.compile(str(save(small(), tmp_path)), "host", only="magic")
