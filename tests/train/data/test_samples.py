from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.train import MLP
from gossamer.train.data.samples import samples

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def _with(row: int, column: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


@pytest.mark.parametrize(("x", "y", "message"), [
    (_with(4, 1, np.nan), Y, "x has nan in row 4, column 1: expected finite float32 numbers"),
    (_with(5, 0, -np.inf), Y, "x has -inf in row 5, column 0"),
    (_with(2, 1, 1e300), Y, "x has 1e+300 in row 2, column 1"),
    (X, Y[:5], "x has 6 rows, y has 5: expected as many"),
    (X, 3, "x has 6 rows, y is one value: expected as many"),
    (X[:0], Y[:0], "x has no rows: expected at least one sample"),
    (X[0], Y, "x has shape (2,): expected (rows, 2). Reshape your data, such as "
              "x.reshape(-1, 2)"),
    (X.reshape(6, 2, 1), Y, "x has shape (6, 2, 1): expected (rows, 2)"),
    (np.ones((6, 3)), Y, "x has 3 columns, sizes begin with 2: expected as many"),
    (X.astype(str), Y, "x is of type <U32: expected numbers"),
    (X * 1j, Y, "Complex data not supported: x is of type complex128, expected real numbers"),
    (X, [0, 1, 2, 3, 1, 7], "y has the label 3 in row 3: sizes end in 3, which takes labels 0 to "
                            "2, or 3 different ones; y has 5"),
    (X, [-1, 0, 1, 2, 0, 1], "y has the label -1 in row 0"),
    (X, list("abcdab"), "y has 4 different labels, sizes end in 3: expected as many; they are "
                        "'a', 'b', 'c', 'd'"),
    (X, Y.astype(float), "y is one number a row, of type float64, where sizes end in 3: give "
                         "integer labels (y.astype(int)) to classify, or targets of shape (6, 3)"),
    (X, np.full((6, 2), 0.5), "y has 2 columns, sizes end with 3: expected as many"),
    (X, np.where(np.eye(6, 3) > 0, np.nan, 0), "y has nan in row 0, column 0"),
    (X, np.ones((6, 3, 1)), "y has shape (6, 3, 1): expected (rows, 3)"),
    (X, np.full((6, 3), None), "Unknown label type: y has None in row 0, expected texts alone, or "
                               "numbers alone"),
    (X, np.tile(Y[:, None], (1, 2)), "y has shape (6, 2): expected one label a row, or targets of "
                                     "shape (6, 3)")])
def test_wrong_data(x: Any, y: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as error:
        samples(x, y, (2, 3))
    assert "\n" not in str(error.value)


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


def test_wrong_validation_data() -> None:
    mlp = MLP.published((2, 3), device="host", epochs=1)
    for validation, message in (((X, Y[:3]), "validation x has 6 rows, validation y has 3"),
                        ((_with(1, 0, np.nan), Y), "validation x has nan in row 1, column 0"),
                        ((X, Y + 1), "validation y has the label 3 in row 2: expected one of 0, 1, "
                                     "2"),
                        ((X, ["a"] * 6), "validation y is of type <U1, the classes are 0, 1, 2"),
                        ((X, np.eye(3)[Y]), "validation y holds labels and y numbers, or the other "
                                            "way round"),
                        ((X[:0], Y[:0]), "validation x has no rows"),
                        (X, "validation: expected a pair of x and y")):
        with pytest.raises(InputError, match=re.escape(message)):
            mlp.fit(X, Y, validation=validation)
