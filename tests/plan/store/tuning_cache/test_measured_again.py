"""Measurements of another algorithm, driver, version or host are measured again."""

import warnings

from gossamer.device.registry import find
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Measurement
from gossamer.plan.store import database
from gossamer.plan.store.tuning_cache import TuningCache
from tests.plan.store.tuning_cache.measurements import cache, measured, problem


def test_a_changed_algorithm_is_measured_again_alone(tmp_path, algorithms):
    cache(tmp_path).put({problem(): [measured("tile=8"), measured("", "few_rows")]})
    algorithms["tiled"] = "second source"
    stored = cache(tmp_path)
    assert stored.get(problem()) == [measured("", "few_rows")]
    assert stored.notices == ["measurements of 1 layer by tiled were made before it was changed: "
                              "measured again"]
    stored.put({problem(): [measured("tile=16")]})
    fresh = cache(tmp_path)
    assert fresh.get(problem()) == [measured("", "few_rows"), measured("tile=16")]
    assert fresh.notices == []
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
    assert newer.notices == ["measurements of 2 layers were made with driver beads 1.0, now "
                             "beads 2.0: measured again"]
    newer.put({problem(1): [measured(median_us=3.0)]})
    assert cache(tmp_path, driver="beads 2.0").get(problem(1)) == [measured(median_us=3.0)]
    assert cache(tmp_path).get(problem(1)) == [measured()]
    monkeypatch.setattr("gossamer.plan.store.tuning_cache.PACKAGE_VERSION", "99")
    later = cache(tmp_path, driver="beads 2.0")
    assert later.get(problem(1)) is None
    (notice,) = later.notices
    assert "gossamer " in notice and "now 99" in notice and "beads" not in notice


def test_another_toolkit_is_measured_again(tmp_path):
    for toolkit, median_us in (("BLAS with 2 threads", 2.0), ("BLAS with 1 thread", 1.0)):
        here = cache(tmp_path, toolkit=toolkit)
        assert here.get(problem()) is None
        here.put({problem(): [measured(median_us=median_us)]})
    (notice,) = here.notices
    assert "BLAS with 2 threads, now BLAS with 1 thread: measured again" in notice
    assert cache(tmp_path, toolkit=toolkit).get(problem()) == [measured(median_us=1.0)]


def test_real_problems_have_real_sources(tmp_path, monkeypatch):
    monkeypatch.undo()
    conv = Conv2dProblem(1, 3, 8, 8, 4, (3, 3))
    algorithm = OPS["conv2d"].algorithms[0]
    result = Measurement(algorithm.name, "", ("NCHW",), ("NCHW",), "fp32", 1.0, 1.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
    assert stored.notices == ["measurements of 1 layer by cudnn were made before it was changed: "
                              "measured again"]
