"""A run of a suite of one tiny network, made once."""

from __future__ import annotations

import dataclasses

import pytest

from gossamer.bench import contest
from gossamer.bench.peaks import Peaks
from gossamer.bench.peers import AbsentError, Alternative
from gossamer.bench.rows import Stamp
from gossamer.bench.suites import network_case
from gossamer.bench.work import Case
from gossamer.device import find
from tests.bench.networks import tiny

PEAKS = Peaks(1e12, 1e11)


def absent(*_: object) -> list[Alternative]:
    raise AbsentError("not installed: pip install something")


def broken(*_: object) -> list[Alternative]:
    def make() -> None:
        raise ValueError("no such layer\nand more lines")

    return [Alternative("first", make), Alternative("second", make)]


@pytest.fixture(scope="session")
def case() -> Case:
    """The tiny network at batch 3 on the host, against a peer that is absent and one that
    fails."""
    case = network_case("suite", tiny(), find("host"), 3, ["onnxruntime", "torch-eager"])
    return dataclasses.replace(case, contenders={
        **case.contenders, "somebody": absent, "nobody": broken})


@pytest.fixture(scope="session")
def result(case: Case) -> contest.Result:
    stamp = Stamp.of(find("host"), "gossamer bench suite")
    return contest.run(case, PEAKS, stamp)


