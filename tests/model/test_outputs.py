import numpy as np
import pytest

from gossamer.model.outputs import best_classes, best_classes_of_each


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
