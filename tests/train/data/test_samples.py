from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.train import MLP
from gossamer.train.data.samples import samples
from tests.golden import Golden

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def _with(row: int, column: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


WRONG = {
    "NaN": (_with(4, 1, np.nan), Y), "infinite": (_with(5, 0, -np.inf), Y),
    "large": (_with(2, 1, 1e300), Y), "fewer labels": (X, Y[:5]), "one label": (X, 3),
    "nothing": (X[:0], Y[:0]), "one row": (X[0], Y), "three dimensions": (X.reshape(6, 2, 1), Y),
    "columns": (np.ones((6, 3)), Y), "texts": (X.astype(str), Y), "complex": (X * 1j, Y),
    "more labels": (X, [0, 1, 2, 3, 1, 7]), "a negative label": (X, [-1, 0, 1, 2, 0, 1]),
    "four texts": (X, list("abcdab")), "floats": (X, Y.astype(float)),
    "two columns": (X, np.full((6, 2), 0.5)),
    "NaN in y": (X, np.where(np.eye(6, 3) > 0, np.nan, 0)), "y of three": (X, np.ones((6, 3, 1))),
    "None": (X, np.full((6, 3), None)), "columns of labels": (X, np.tile(Y[:, None], (1, 2)))}
VALIDATION: dict[str, Any] = {
    "fewer labels": (X, Y[:3]), "NaN": (_with(1, 0, np.nan), Y), "another label": (X, Y + 1),
    "texts": (X, ["a"] * 6), "scores": (X, np.eye(3)[Y]), "nothing": (X[:0], Y[:0]), "no pair": X}


def test_wrong_data(golden: Golden) -> None:
    golden.refusals("samples: arrays", {
        case: partial(samples, x, y, (2, 3)) for case, (x, y) in WRONG.items()})
    mlp = MLP.published((2, 3), device="host", epochs=1)
    golden.refusals("samples: validation", {case: partial(mlp.fit, X, Y, validation=each)
                                            for case, each in VALIDATION.items()})


def test_one_output_takes_numbers() -> None:
    with pytest.raises(InputError, match="y holds labels, and sizes end in 1: expected an output"):
        samples(X, Y, (2, 1))
    assert samples(X, Y.astype(float), (2, 1)).targets.shape == (6, 1)
    assert samples(X, Y.astype(float)[:, None], (2, 1)).labels is None


def test_one_hot_targets() -> None:
    data = samples(X.astype(np.uint8), np.array([5, 9, 7, 7, 9, 5]), (2, 3))
    assert data.x.dtype == data.targets.dtype == np.float32
    np.testing.assert_array_equal(data.x, X)
    np.testing.assert_array_equal(data.targets, np.eye(3)[[0, 2, 1, 1, 2, 0]])
    np.testing.assert_array_equal(data.labels, [0, 2, 1, 1, 2, 0])
    assert data.classes.tolist() == [5, 7, 9]
    assert samples(X, Y - 1, (2, 3)).classes.tolist() == [-1, 0, 1]
    booleans = samples(X, Y % 2 == 1, (2, 2))
    assert booleans.classes.tolist() == [False, True]
    # a matrix of any type is used as the targets
    assert samples(X, np.eye(3, dtype=int)[Y], (2, 3)).labels is None


@pytest.mark.parametrize(("y", "task", "targets"), [
    ([[0], [1], [2], [1]], None, None), ([0.0, 1, 2, 1], None, [[0], [1], [2], [1]]),
    ([[0, 1], [2, 3]] * 2, None, [[0, 1], [2, 3]] * 2),
    (np.array([1, 0, 2.5, True], object), None, [[1], [0], [2.5], [1]]),
    (np.array([1, 0, 2, True], object), None, None),
    ([[0.0], [1], [0], [1]], "classification", None),
    ([0, 1, 2, 1], "regression", [[0], [1], [2], [1]])])
def test_what_is_a_label(y: Any, task: str | None, targets: list[list[float]] | None) -> None:
    data = samples(X[:4], y, (), task=task)
    assert (data.labels is not None) == (targets is None)
    assert targets is None or data.targets.tolist() == targets


def test_indicators_of_several_labels_are_refused() -> None:
    both, one = np.tile([[1, 1, 0], [0, 1, 1]], (3, 1)), np.eye(3)[Y]
    for dtype in (int, bool, np.uint8):
        for y, sizes in ((both, ()), (both, (2, 3)), (one, ())):
            for task in (None, "classification"):
                with pytest.raises(ValueError, match="multilabel"):
                    samples(X, y.astype(dtype), sizes, task=task)
        assert samples(X, both.astype(dtype), (), task="regression").labels is None
    assert samples(X, both.astype(float), ()).labels is None


def test_weights_stay_with_their_rows() -> None:
    data = samples(X, Y, (), sample_weight=[1, 2, 3, 3, 2, 1])
    some = data.rows(np.array([4, 0]))
    assert some.weights is not None and some.weights.tolist() == [1, 0.5]
    assert some.labels.tolist() == [1, 0] and some.x.tolist() == X[[4, 0]].tolist()
    assert some.targets_for("squared_error").tolist() == [[0, 1, 0], [1, 0, 0]]
    assert some.targets_for("cross_entropy").tolist() == [[0, 1, 0], [0.5, 0, 0]]
