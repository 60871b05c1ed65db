import numpy as np
import pytest

from gossamer.model.outputs import (
    best_classes,
    best_classes_of_each,
    broken_rows,
    is_class_scores,
    is_finite,
    ranks,
    summary,
)


def test_best_classes():
    top = best_classes(np.array([1.0, 3.0, 3.0, -2.0]), 2, ["a", "b", "c", "d"])
    assert [line["name"] for line in top] == ["b", "c"]
    powers = np.exp([1.0, 3.0, 3.0, -2.0])
    assert top[0]["probability"] == pytest.approx(powers[1] / powers.sum())
    probabilities = best_classes(np.array([0.25, 0.75]).reshape(2, 1, 1), 9, None)
    assert [line["probability"] for line in probabilities] == [0.75, 0.25]


@pytest.mark.parametrize("count", [1, 5, 9, 10, 12])
def test_the_order_is_that_of_a_stable_sort(count: int) -> None:
    rng = np.random.default_rng(count)
    some = rng.standard_normal((60, 10))
    for scores in (some, rng.integers(0, 4, some.shape).astype(float),
                   np.where(rng.random(some.shape) < 0.3, np.nan, some),
                   np.where(rng.random(some.shape) < 0.95, np.nan, some)):
        found = best_classes_of_each(scores, count, None, independent=True)
        assert [[line["class"] for line in lines] for lines in found] == np.argsort(
            -scores, axis=1, kind="stable")[:, :count].tolist()


def test_the_rank_of_a_class_is_its_place_among_the_best() -> None:
    scores = np.random.default_rng(0).integers(0, 4, (60, 5)).astype(np.float32)
    order = [[line["class"] for line in lines] for lines in best_classes_of_each(scores, 5, None)]
    for right in range(5):
        assert ranks(scores, np.full(60, right)).tolist() == [each.index(right) for each in order]
    scores[:, 2] = np.nan
    assert (ranks(scores, np.full(60, 2)) >= 4).all(), "NaN gives the right class a bad rank"
    assert (ranks(scores, np.full(60, 1)) >= 1).all()


@pytest.mark.parametrize(("shape", "dtype", "are"), [
    ((2, 3), "f4", True), ((2, 2, 1, 1), "f2", True), ((1, 3), "f4", False), ((2, 1), "f4", False),
    ((2,), "f4", False), ((2, 3, 1, 2), "f4", False), ((2, 3), "i8", False), ((), "f4", False)])
def test_which_outputs_are_scores(shape: tuple[int, ...], dtype: str, are: bool) -> None:
    assert is_class_scores(np.zeros(shape, dtype), 2) == are


def test_summaries_and_rows_that_are_not_finite() -> None:
    y = np.float32([[1, 2], [np.nan, 0], [3, -np.inf], [4, -5]])
    assert (broken_rows(y, 4), broken_rows(y, 3), broken_rows(y[0, 0], 1)) == ([1, 2], [], [])
    assert is_finite(y[[0, 3]]) and not is_finite(y) and is_finite(np.int64([7]))
    assert summary(y[[0, 3]]) == {"shape": [2, 2], "dtype": "float32", "min": -5, "max": 4}
