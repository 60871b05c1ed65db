import numpy as np
import pytest

from gossamer.model.outputs import best_classes


def test_best_classes():
    top = best_classes(np.array([1.0, 3.0, 3.0, -2.0]), 2, ["a", "b", "c", "d"])
    assert [line["name"] for line in top] == ["b", "c"]
    powers = np.exp([1.0, 3.0, 3.0, -2.0])
    assert top[0]["probability"] == pytest.approx(powers[1] / powers.sum())
    probabilities = best_classes(np.array([0.25, 0.75]).reshape(2, 1, 1), 9, None)
    assert [line["probability"] for line in probabilities] == [0.75, 0.25]
