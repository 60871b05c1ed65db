"""Tests of a case with all contenders: its rows, absent contenders and wrong results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, setting
from bench_tests.networks import tiny
from gossamer.bench.rows import ResultRow, Stamp
from gossamer.bench.work import AbsentError
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.errors import GossamerError, UnsupportedError
from gossamer.measure import Task, Timing
from gossamer.plan.plan import Plan
from gossamer_bench import contest
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.peers.inference import PEERS
from gossamer_bench.row_files import KEYS
from gossamer_bench.suites.networks import network_case, own
from gossamer_bench.work import Case
from tests.fixtures import is_slow
from tests.tolerances import tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")


def test_every_contender_has_a_row_or_a_reason(result: contest.Result) -> None:
    present = {row.contender for row in result.rows}
    assert present == {"gossamer", *(
        name for name, package in (("onnxruntime", "onnxruntime"), ("torch-eager", "torch"))
        if find_spec(package))}
    assert result.absent["somebody"] == "not installed: pip install something"
    assert result.failed == {"nobody (first)": "ValueError: no such layer",
                             "nobody (second)": "ValueError: no such layer"}
    assert present | set(result.absent) >= {"gossamer", "onnxruntime", "torch-eager", "somebody"}


def test_rows_are_complete(result: contest.Result, case: Case) -> None:
    for row in result.rows:
        assert tuple(vars(row)) == KEYS
        assert all(value is not None for key, value in vars(row).items() if key != "commit")
        assert 0 < row.p25_us <= row.median_us <= row.p75_us
        assert 0 < row.error < tolerance("network")
        assert (row.suite, row.case, row.batch) == ("suite", "tiny", 3)
        assert (row.device, row.precision) == ("host", "fp32")
        assert row.versions["numpy"] == np.__version__
    assert len({row.run_id for row in result.rows}) == 1
    medians = [row.median_us for row in result.rows]
    assert medians == sorted(medians)


def test_the_least_work_is_as_counted_by_hand(case: Case) -> None:
    weights = 4 * 3 * 9 + 4 * 9 + 5 * 4
    zeros = 9
    epilogues = 4 + 5
    assert case.least_bytes == 4 * (weights - zeros + epilogues + 3 * 3 * 64 + 3 * 5)
    assert case.density == (weights - zeros) / weights
    products = 2 * (16 * (4 * 27 - zeros) + 4 * 16 * 9 + 5 * 4) * 3
    # at most five operations per image for each of the 64 values between the layers
    assert products < case.flops < products + 3 * (5 * 64 * 2)


def test_speed_of_light_is_the_slower_of_arithmetic_and_memory() -> None:
    assert PEAKS.speed_of_light_us(10**9, 10**3, "fp32") == pytest.approx(1000)
    assert PEAKS.speed_of_light_us(10**9, 10**3, "fp16") == pytest.approx(250)
    assert PEAKS.speed_of_light_us(10**3, 10**8, "fp32") == pytest.approx(1000)
    assert PEAKS.speed_of_light_us(10**9, 10**3, "tf32") is None


def test_what_fits_the_cache_is_not_bound_by_copies() -> None:
    cached = dataclasses.replace(PEAKS, cache_bytes=10**8)
    assert cached.speed_of_light_us(10**3, 10**8, "fp32") is None
    assert cached.speed_of_light_us(10**3, 10**8 + 1, "fp32") is not None
    assert cached.speed_of_light_us(10**9, 10**3, "fp32") == pytest.approx(1000)


def wrong(error: float, name: str = "peer") -> Alternative:
    """A contender whose output has this relative error."""
    def make() -> ReadyContender:
        host = find("host")
        ready = own(Plan(tiny().graph, host), np.random.default_rng(0).standard_normal(
            (3, 3, 8, 8), np.float32)).make()
        return dataclasses.replace(ready, contender=name,
                                   output=lambda count: ready.output(count)
                                   * np.float32(1 + error))

    return Alternative("only", make)


@pytest.mark.parametrize(("error", "rows"), [(0.0, 2), (1e-3, 1), (float("nan"), 1)])
def test_a_wrong_result_is_no_result(case: Case, error: float, rows: int) -> None:
    case = dataclasses.replace(case, contenders={
        "gossamer": case.contenders["gossamer"], "peer": lambda: [wrong(error)]})
    result = contest.run(case, PEAKS, STAMP)
    assert len(result.rows) == rows
    assert ("not computed in fp32" in result.failed.get("peer", "")) is (rows == 1)


def test_a_peer_that_fails_while_timed_is_listed(case: Case) -> None:
    calls = []

    def flaky(stream: object) -> None:
        calls.append(stream)
        if len(calls) > 4:
            raise RuntimeError("ran out of luck")

    def make() -> ReadyContender:
        return dataclasses.replace(wrong(0.0).make(), work=flaky)

    case = dataclasses.replace(case, contenders={
        "gossamer": case.contenders["gossamer"], "peer": lambda: [Alternative("only", make)]})
    result = contest.run(case, PEAKS, STAMP)
    assert [row.contender for row in result.rows] == ["gossamer"]
    assert result.failed == {"peer": "RuntimeError: ran out of luck"}


def broken(error: Exception) -> Alternative:
    def make() -> ReadyContender:
        raise error

    return Alternative("broken", make)


def test_our_own_failure_is_an_error(case: Case) -> None:
    failing = dataclasses.replace(case, contenders={
        "gossamer": lambda: [broken(UnsupportedError("no kernel"))]})
    with pytest.raises(GossamerError, match="no kernel"):
        contest.run(failing, PEAKS, STAMP)
    failing = dataclasses.replace(case, contenders={
        "gossamer": lambda: [broken(ValueError("odd")), broken(ValueError("no kernel"))]})
    with pytest.raises(RuntimeError, match="gossamer failed at tiny: odd"):
        contest.run(failing, PEAKS, STAMP)


def test_of_several_precisions_ours_may_fail_in_one(case: Case) -> None:
    result = contest.run(dataclasses.replace(case, contenders={
        "gossamer": lambda: [wrong(0.0, "gossamer"), broken(ValueError("odd"))]}), PEAKS, STAMP)
    assert [row.contender for row in result.rows] == ["gossamer"]
    assert result.failed == {"gossamer (broken)": "ValueError: odd"}


def test_an_alternative_may_be_absent(case: Case) -> None:
    result = contest.run(dataclasses.replace(case, contenders={
        "peer": lambda: [wrong(0.0), broken(AbsentError("no TF32"))]}), PEAKS, STAMP)
    assert result.absent == {"peer (broken)": "no TF32"} and len(result.rows) == 1


def test_only_the_fastest_alternative_has_a_row(case: Case) -> None:
    slow = dataclasses.replace(wrong(0.0).make(), config="slow")

    def twice(stream: object) -> None:
        for _ in range(50):
            quick.work(stream)

    quick = dataclasses.replace(wrong(0.0).make(), config="quick")
    slow = dataclasses.replace(slow, work=twice)
    case = dataclasses.replace(case, contenders={
        "peer": lambda: [Alternative("a", lambda: slow), Alternative("b", lambda: quick)]})
    (row,) = contest.run(case, PEAKS, STAMP).rows
    assert row.config == "quick"


def test_on_every_device(device: Device, tmp_path: Path) -> None:
    if is_slow(device):
        pytest.skip("simulators are not measured")
    case = network_case("suite", tiny(), 2, setting(device, tmp_path))
    (row,) = contest.run(case, PEAKS, STAMP).rows
    assert isinstance(row, ResultRow)
    assert row.device == device.api and row.error < tolerance("network")
    assert (row.speed_of_light_us is None) is (device.name != PEAKS.device)


@pytest.mark.parametrize("name", ["torch-graph", "torch-compile"])
def test_peers_of_cuda_are_absent_elsewhere(name: str) -> None:
    pytest.importorskip("torch")
    x = np.zeros((1, 3, 8, 8), np.float32)
    with pytest.raises(AbsentError, match="CUDA"):
        PEERS[name](tiny(), x, find("host"), ["fp32"])


def test_a_work_of_many_runs_is_timed_as_one(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "interleave",
                        lambda tasks, **_: [Timing(100.0, 90.0, 120.0, 5) for _ in tasks])
    ready = dataclasses.replace(wrong(0.0).make(), runs=10)
    case = dataclasses.replace(case, contenders={"peer": lambda: [
        Alternative("only", lambda: ready)]})
    (row,) = contest.run(case, PEAKS, STAMP).rows
    assert (row.median_us, row.p25_us, row.p75_us) == (10.0, 9.0, 12.0)


def test_each_precision_of_a_contender_has_a_row(case: Case) -> None:
    def fp16() -> ReadyContender:
        return dataclasses.replace(wrong(1e-3).make(), precision="fp16")

    case = dataclasses.replace(case, contenders={
        "gossamer": case.contenders["gossamer"],
        "peer": lambda: [wrong(0.0), Alternative("fp16", fp16)]})
    result = contest.run(case, PEAKS, STAMP)
    assert sorted((row.contender, row.precision) for row in result.rows) == [
        ("gossamer", "fp32"), ("peer", "fp16"), ("peer", "fp32")]
    lights = {row.precision: row.speed_of_light_us for row in result.rows}
    # the bound is by bytes, of which float16 has half
    assert lights["fp16"] == pytest.approx(lights["fp32"] / 2, rel=1e-3)


def test_a_fast_result_of_less_precision_is_wrong(case: Case) -> None:
    def fp16() -> ReadyContender:
        return dataclasses.replace(wrong(3e-2).make(), precision="fp16")

    case = dataclasses.replace(case, contenders={"peer": lambda: [Alternative("fp16", fp16)]})
    assert "not computed in fp16" in contest.run(case, PEAKS, STAMP).failed["peer"]


@pytest.mark.parametrize(("p75_us", "scatters"), [(10.9, False), (11.1, True)])
def test_a_contender_whose_times_scatter_is_named(case: Case, monkeypatch: pytest.MonkeyPatch,
                                                  p75_us: float, scatters: bool) -> None:
    monkeypatch.setattr(contest, "interleave", lambda tasks, **options: [
        Timing(10.5, 10.0, p75_us, 20), Timing(11.0, 10.9, 11.1, 20)])
    case = dataclasses.replace(case, contenders={
        "peer": lambda: [wrong(0.0)], "gossamer": lambda: [wrong(0.0, "gossamer")]})
    result = contest.run(case, PEAKS, STAMP)
    assert [row.notice for row in result.rows] == [result.notice] * 2
    assert result.notice.startswith(
        "the quartiles of the times differ for peer by 11%: other programs may have been "
        "running, and another run may measure a different ratio") is scatters
    assert bool(result.notice) is scatters


@pytest.mark.parametrize(("transfers", "is_far"), [
    ([20.0, 20.0, 120.0], False), ([20.0, 120.0, 121.0], True)])
def test_processors_that_lie_far_apart_in_most_rounds_are_told(
        case: Case, monkeypatch: pytest.MonkeyPatch, transfers: list[float], is_far: bool) -> None:
    left = list(transfers)

    def rounds(tasks: Sequence[Task], **_: object) -> list[Timing]:
        for _round in transfers:
            for task in tasks:
                with task.around():
                    pass
        return [Timing(10.5, 10.4, 10.6, 20) for _ in tasks]

    monkeypatch.setattr(contest, "transfer_ns", lambda: left.pop(0))
    monkeypatch.setattr(contest, "interleave", rounds)
    result = contest.run(dataclasses.replace(case, contenders={
        "gossamer": lambda: [wrong(0.0, "gossamer")], "peer": lambda: [wrong(0.0)]}),
        PEAKS, STAMP)
    assert not left
    assert [row.notice for row in result.rows] == [result.notice] * 2
    assert result.notice.startswith("a cache line takes 120 ns between processors") is is_far
    assert bool(result.notice) is is_far


class Gpu(HostDevice):
    """The host as a device whose work its processors do not do."""

    on_processors = False


def test_beside_a_gpu_the_processors_may_lie_anywhere(
        case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> ReadyContender:
        return dataclasses.replace(wrong(0.0, "gossamer").make(), device=Gpu())

    monkeypatch.setattr(contest, "transfer_ns", lambda: pytest.fail("the processors are asked"))
    result = contest.run(dataclasses.replace(case, contenders={
        "peer": lambda: [wrong(0.0)], "gossamer": lambda: [Alternative("only", make)]}),
        PEAKS, STAMP)
    assert len(result.rows) == 2 and not result.failed


def test_a_contender_is_sampled_in_its_own_context(case: Case) -> None:
    is_inside = [False]
    seen: list[bool] = []

    @contextmanager
    def around() -> Iterator[None]:
        is_inside.append(True)
        yield
        is_inside.append(False)

    ready = dataclasses.replace(wrong(0.0).make(), around=around,
                                work=lambda stream: seen.append(is_inside[-1]))
    contest.run(dataclasses.replace(case, contenders={
        "peer": lambda: [Alternative("only", lambda: ready)]}), PEAKS, STAMP)
    warm_up = seen.index(True)
    assert len(seen) > warm_up > 0 and all(seen[warm_up:])
    assert not is_inside[-1]

