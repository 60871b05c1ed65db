"""Checks of candidates with other constants than those with which they were measured."""

from gossamer.plan.store import database
from tests.plan.store.tuning_cache.measurements import cache, good_file, measured, problem


def test_checks_come_back(tmp_path):
    first = cache(tmp_path)
    assert not first.has_check(problem(), measured(), "weights")
    first.put_checks([(problem(), measured(), "weights")])
    assert first.has_check(problem(), measured(), "weights")
    later = cache(tmp_path)
    assert later.has_check(problem(), measured(), "weights")
    assert later.get(problem()) is None and later.notices == []


def test_a_check_holds_for_one_candidate_with_one_set_of_constants(tmp_path, algorithms):
    stored = cache(tmp_path)
    stored.put_checks([(problem(), measured("tile=8"), "weights")])
    assert not stored.has_check(problem(), measured("tile=8"), "others")
    assert not stored.has_check(problem(), measured("tile=16"), "weights")
    assert not stored.has_check(problem(2), measured("tile=8"), "weights")
    assert stored.has_check(problem(), measured("tile=8", median_us=1.0), "weights")
    algorithms["tiled"] = "second source"
    assert not stored.has_check(problem(), measured("tile=8"), "weights")


def test_checks_of_another_driver_count_for_nothing(tmp_path):
    stored = cache(tmp_path)
    stored.put_checks([(problem(), measured(), "weights")])
    assert not cache(tmp_path, driver="beads 2.0").has_check(problem(), measured(), "weights")


def test_checks_are_added_to_those_of_other_processes(tmp_path):
    one, other = cache(tmp_path), cache(tmp_path)
    for stored, weights in ((one, "first"), (other, "second")):
        stored.put_checks([(problem(), measured(), weights)])
    later = cache(tmp_path)
    assert later.has_check(problem(), measured(), "first")
    assert later.has_check(problem(), measured(), "second")


def test_a_file_without_checks_is_taken(tmp_path):
    _, content = good_file(tmp_path / "from")
    content["sections"][0].pop("checks", None)
    stored = cache(tmp_path)
    stored.take(content)
    assert not stored.has_check(problem(), measured(), "weights")
    stored.put_checks([(problem(), measured(), "weights")])
    later = cache(tmp_path)
    assert later.has_check(problem(), measured(), "weights")
    assert later.get(problem()) == [measured()] and later.notices == []


def test_checks_travel_with_the_measurements(tmp_path):
    stored = cache(tmp_path / "from")
    stored.put({problem(): [measured()]})
    stored.put_checks([(problem(), measured(), "weights")])
    other = cache(tmp_path / "to")
    other.take(database.read(stored.path))
    assert cache(tmp_path / "to").has_check(problem(), measured(), "weights")
