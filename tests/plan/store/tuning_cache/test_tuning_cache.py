"""What the tuning cache returns, what is measured again, and checks that were passed."""

import warnings

import pytest

from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Measurement, candidate_key
from gossamer.plan.store import database
from gossamer.plan.store.tuning_cache import TuningCache, file_name
from gossamer.plan.store.tuning_file import text
from gossamer.tensor import Format, TensorSpec
from tests.plan.store.tuning_cache.measurements import (
    TIMING,
    cache,
    device,
    good_file,
    measured,
    problem,
)


def test_what_was_put_comes_back(tmp_path):
    put = [measured("tile=8", median_us=123.456789, error=1.23456e-7),
           measured("tile=16", failure="wrong numbers (error inf)", error=float("inf")),
           Measurement("few_rows", "", ("NHWC float16 c8 b1,1,1,1", "row"), ("row",), "fp16",
                       failure="did not compile: no such thing\nas \"this\"")]
    first = cache(tmp_path)
    assert first.get(problem()) is None
    first.put({problem(): put})
    second = cache(tmp_path)
    assert second.get(problem()) == first.get(problem()) == [put[2], put[1], put[0]]
    assert second.get(problem(2)) is None
    assert first.messages == second.messages == {}
    assert put[0].median_us == 123.5 and put[0].error == 1.235e-7


def test_an_exported_file_can_be_read_by_people(tmp_path):
    stored = cache(tmp_path)
    put = [measured("tile=8"), measured("tile=16"),
           measured("", "few_rows", failure="wrong numbers (error 0.3)")]
    stored.put({problem(): put})
    content = database.read(stored.path)
    (section,) = content["sections"]
    assert section["made_by"]["driver"] == "beads 1.0"
    lines = {line["config"]: line for line in section["candidates"].values()}
    assert lines["tile=8"] == {
        "problem": f"gemm {problem().describe()}", "source": "first source",
        "algorithm": "tiled", "config": "tile=8", "inputs": ["row"], "outputs": ["row"],
        "precision": "fp32", "median_us": 12.0, "p25_us": 11.0, "p75_us": 13.0,
        "error": None,
        "failure": None, "not_tried": False, "search": "", "wrong_numbers": False, "samples": 0,
        "weights": ""}
    again = cache(tmp_path / "again")
    again.put({problem(): put[::-1]})
    assert text(database.read(again.path)) == text(content)


def test_a_variant_is_found_again():
    tiled = OPS["gemm"].algorithms[0]
    spec = TensorSpec((1, 8, 4, 4), Format("NHWC", "float16", 8, (1, 1, 1, 1)))
    variant = Variant((("tile", 8), ("order", "n")), (spec, TensorSpec((3,))),
                      (spec.with_format(layout="CHWN"),), "fp16")
    result = Measurement.of(tiled, variant, Timing(2.0, 1.0, 3.0, 5), error=0.0)
    assert result.candidate_key == candidate_key(tiled, variant) == (
        tiled.name, "tile=8 order=n", ("NHWC float16 c8 b1,1,1,1", "row"),
        ("CHWN float16 c8 b1,1,1,1",), "fp16")
    assert (result.median_us, result.p25_us, result.p75_us) == (2, 1, 3)


def test_what_cannot_be_measured_is_refused(tmp_path):
    for wrong in (None, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="tiled"):
            Measurement("tiled", "", (), (), "fp32", wrong)
    with pytest.raises(ValueError, match="abacus"):
        cache(tmp_path).put({problem(): [measured(algorithm="abacus")]})
    assert list(tmp_path.iterdir()) == []


def test_a_later_measurement_replaces_an_earlier_one(tmp_path):
    stored = cache(tmp_path)
    stored.put({problem(): [measured(median_us=5.0), measured("tile=16", median_us=6.0)]})
    stored.put({problem(): [measured(median_us=7.0)]})
    assert [measurement.median_us for measurement in cache(tmp_path).get(problem())] == [6.0, 7.0]


def test_times_of_plans_come_back(tmp_path):
    first = cache(tmp_path)
    assert first.get_plan("key") is None
    first.put_plans({"key": ("small, batch 1", Timing(123.4444, 120.0, 130.1, 20)),
                     "other": ("small, batch 1", Timing(5.0, 5.0, 5.0, 3))})
    first.put({problem(): [measured()]})
    for stored in (first, cache(tmp_path)):
        assert stored.get_plan("key") == TIMING and stored.get_plan("absent") is None
        assert stored.get_plan("other") == Timing(5.0, 5.0, 5.0, 3)
    assert database.read(first.path)["sections"][0]["plans"]["key"] == {
        "plan": "small, batch 1", "median_us": 123.4, "p25_us": 120.0, "p75_us": 130.1,
        "repeats": 20}
    first.put_plans({"other": ("small, batch 1", TIMING)})
    later = cache(tmp_path)
    assert later.get_plan("key") == later.get_plan("other") == TIMING
    assert cache(tmp_path, driver="beads 2.0").get_plan("key") is None
    assert later.messages == {}


def test_a_file_without_plans_is_taken(tmp_path):
    _, content = good_file(tmp_path / "from")
    del content["sections"][0]["plans"]
    stored = cache(tmp_path)
    stored.take(content)
    assert stored.get_plan("key") is None and stored.get(problem()) == [measured()]
    assert stored.messages == {}


def test_devices_of_one_kind_share_a_file_and_others_do_not(tmp_path):
    names = {file_name(device(**changed)) for changed in (
        {}, {"compute_units": 8}, {"api": "cuda"}, {"description": "Abacus 3000 wooden"},
        {"description": "x" * 500}, {"description": "x" * 501}, {"description": "../../ö"})}
    assert len(names) == 7
    assert all(len(name) < 110 and "/" not in name for name in names)
    assert file_name(device(driver="beads 2.0")) in names


def test_checks_come_back(tmp_path):
    first = cache(tmp_path)
    assert not first.has_check(problem(), measured(), "weights")
    first.put_check(problem(), measured(), "weights")
    assert first.has_check(problem(), measured(), "weights")
    later = cache(tmp_path)
    assert later.has_check(problem(), measured(), "weights")
    assert later.get(problem()) is None and later.messages == {}


def test_a_check_holds_for_one_candidate_with_one_set_of_constants(tmp_path, algorithms):
    stored = cache(tmp_path)
    stored.put_check(problem(), measured("tile=8"), "weights")
    assert not stored.has_check(problem(), measured("tile=8"), "others")
    assert not stored.has_check(problem(), measured("tile=16"), "weights")
    assert not stored.has_check(problem(2), measured("tile=8"), "weights")
    assert stored.has_check(problem(), measured("tile=8", median_us=1.0), "weights")
    algorithms["tiled"] = "second source"
    assert not stored.has_check(problem(), measured("tile=8"), "weights")


def test_checks_of_another_driver_count_for_nothing(tmp_path):
    stored = cache(tmp_path)
    stored.put_check(problem(), measured(), "weights")
    assert not cache(tmp_path, driver="beads 2.0").has_check(problem(), measured(), "weights")


def test_checks_are_added_to_those_of_other_processes(tmp_path):
    one, other = cache(tmp_path), cache(tmp_path)
    for stored, weights in ((one, "first"), (other, "second")):
        stored.put_check(problem(), measured(), weights)
    later = cache(tmp_path)
    assert later.has_check(problem(), measured(), "first")
    assert later.has_check(problem(), measured(), "second")


def test_a_file_without_checks_is_taken(tmp_path):
    _, content = good_file(tmp_path / "from")
    content["sections"][0].pop("checks", None)
    stored = cache(tmp_path)
    stored.take(content)
    assert not stored.has_check(problem(), measured(), "weights")
    stored.put_check(problem(), measured(), "weights")
    later = cache(tmp_path)
    assert later.has_check(problem(), measured(), "weights")
    assert later.get(problem()) == [measured()] and later.messages == {}


def test_checks_travel_with_the_measurements(tmp_path):
    stored = cache(tmp_path / "from")
    stored.put({problem(): [measured()]})
    stored.put_check(problem(), measured(), "weights")
    other = cache(tmp_path / "to")
    other.take(database.read(stored.path))
    assert cache(tmp_path / "to").has_check(problem(), measured(), "weights")


def test_a_changed_algorithm_is_measured_again_alone(tmp_path, algorithms):
    cache(tmp_path).put({problem(): [measured("tile=8"), measured("", "few_rows")]})
    algorithms["tiled"] = "second source"
    stored = cache(tmp_path)
    assert stored.get(problem()) == [measured("", "few_rows")]
    stored.put({problem(): [measured("tile=16")]})
    fresh = cache(tmp_path)
    assert fresh.get(problem()) == [measured("", "few_rows"), measured("tile=16")]
    assert fresh.messages == {}
    del algorithms["few_rows"]
    assert cache(tmp_path).get(problem()) == [measured("tile=16")]


def test_a_measurement_by_the_present_version_replaces_the_one_by_another(tmp_path, algorithms):
    cache(tmp_path).put({problem(): [measured("tile=8"), measured("tile=16")]})
    algorithms["tiled"] = "second source"
    stored = cache(tmp_path)
    stored.put({problem(): [measured("tile=8", median_us=3.0)]})
    (section,) = database.read(stored.path)["sections"]
    assert {line["config"]: line["source"] for line in section["candidates"].values()} == {
        "tile=8": "second source", "tile=16": "first source"}
    assert cache(tmp_path).get(problem()) == [measured("tile=8", median_us=3.0)]


def test_another_driver_or_version_is_measured_again_and_nothing_is_lost(tmp_path, monkeypatch):
    for rows in (1, 2, 3):
        cache(tmp_path).put({problem(rows): [measured()]})
    newer = cache(tmp_path, driver="beads 2.0")
    assert newer.get(problem(1)) is None and newer.get(problem(1)) is None
    assert newer.get(problem(2)) is None and newer.get(problem(9)) is None
    (notice,) = newer.messages
    assert "driver beads 1.0" in notice and "now it is driver beads 2.0" in notice
    newer.put({problem(1): [measured(median_us=3.0)]})
    assert cache(tmp_path, driver="beads 2.0").get(problem(1)) == [measured(median_us=3.0)]
    assert cache(tmp_path).get(problem(1)) == [measured()]
    monkeypatch.setattr("gossamer.plan.store.tuning_cache.PACKAGE_VERSION", "99")
    later = cache(tmp_path, driver="beads 2.0")
    assert later.get(problem(1)) is None
    (notice,) = later.messages
    assert "driver beads 1.0" in notice and " and with driver beads 2.0" in notice
    assert notice.endswith("gossamer 99: measured again")


def test_another_toolkit_is_measured_again(tmp_path):
    for toolkit, median_us in (("BLAS with 2 threads", 2.0), ("BLAS with 1 thread", 1.0)):
        here = cache(tmp_path, toolkit=toolkit)
        assert here.get(problem()) is None
        here.put({problem(): [measured(median_us=median_us)]})
    (notice,) = here.messages
    assert "BLAS with 2 threads" in notice and "now it is" in notice
    assert cache(tmp_path, toolkit=toolkit).get(problem()) == [measured(median_us=1.0)]


def test_real_problems_have_real_sources(tmp_path, monkeypatch):
    monkeypatch.undo()
    conv = Conv2dProblem(1, 3, 8, 8, 4, (3, 3))
    algorithm = OPS["conv2d"].algorithms[0]
    result = Measurement(algorithm.name, "", ("NCHW",), ("NCHW",), "fp32", 1.0, 1.0, 1.0)
    with warnings.catch_warnings(action="error"):
        TuningCache(find("host"), tmp_path).put({conv: [result]})
    assert TuningCache(find("host"), tmp_path).get(conv) == [result]


def test_another_version_of_a_vendors_library_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.undo()
    conv = Conv2dProblem(1, 3, 8, 8, 4, (3, 3))
    ours = OPS["conv2d"].algorithms[0].name
    results = [Measurement(name, "", ("NCHW",), ("NCHW",), "fp32", 1.0, 1.0, 1.0)
               for name in ("cudnn", ours)]
    monkeypatch.setattr(Cudnn, "version", lambda self, device: "9.19.0")
    TuningCache(find("host"), tmp_path).put({conv: results})
    assert len(TuningCache(find("host"), tmp_path).get(conv)) == 2
    monkeypatch.setattr(Cudnn, "version", lambda self, device: "9.20.0")
    stored = TuningCache(find("host"), tmp_path)
    assert [measurement.algorithm for measurement in stored.get(conv)] == [ours]
    assert not stored.messages
