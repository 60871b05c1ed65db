"""Samples from arrays, data frames and sparse matrices, with weights."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from gossamer.errors import GossamerWarning, InputError
from gossamer.train import MLP
from gossamer.train.data.matrix import check_feature_names, feature_names, matrix, with_classes
from gossamer.train.data.samples import samples
from tests.golden import Golden
from tests.train.frames import Frame

NUMBERS = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("values", [
    NUMBERS, NUMBERS.tolist(), NUMBERS.astype(object), NUMBERS.astype(np.int64),
    Frame(["a", "b"], NUMBERS), scipy.sparse.csr_array(NUMBERS), scipy.sparse.coo_matrix(NUMBERS)])
def test_kinds_of_matrices(values: Any) -> None:
    result = matrix(values, 2, "x")
    assert result.dtype == np.float32 and result.flags.c_contiguous
    np.testing.assert_array_equal(result, NUMBERS)


WRONG_MATRICES = {
    "a text": Frame(["age", "city"], [[1, "Oslo"], [2, "Rome"]]), "a list": [[1, 2], ["Oslo", 3]],
    "texts": NUMBERS.astype(str), "NaN": Frame(["age", "b"], [[1, 2], [np.nan, 3]]),
    "infinite": scipy.sparse.csr_array([[0, np.inf]]), "no columns": np.empty((2, 0))}


def test_what_is_wrong_is_named(golden: Golden) -> None:
    golden.refusals("samples: matrices", {case: partial(matrix, values, None, "x")
                                          for case, values in WRONG_MATRICES.items()})


def test_an_object_that_is_no_number() -> None:
    with pytest.raises(TypeError, match="in row 0, column 0: the argument must be a string or a"):
        matrix(np.array([[{}, 1]], object), None, "x")


def test_names_of_columns() -> None:
    assert feature_names(Frame(["a", "b"], NUMBERS)).tolist() == ["a", "b"]
    assert feature_names(Frame([0, 1], NUMBERS)) is None
    assert feature_names(NUMBERS) is None


@pytest.mark.parametrize(("columns", "message"), [
    (["b", "a"], "must be in the same order as they were in fit: column 0 is 'b' and was 'a'; "
                 "x[mlp.feature_names_in_] puts them in order"),
    (["a"], "Feature names seen at fit time, yet now missing: 'b'"),
    (["a", "b", "c"], "Feature names unseen at fit time: 'c'"),
    (["a", "B"], "unseen at fit time: 'B'; Feature names seen at fit time, yet now missing: 'b'")])
def test_other_columns(columns: list[str], message: str) -> None:
    frame = Frame(columns, np.ones((2, len(columns))))
    with pytest.raises(InputError, match="The feature names should match those") as error:
        check_feature_names(frame, np.array(["a", "b"], object), "x")
    assert message in str(error.value)


def test_names_on_one_side_only() -> None:
    with pytest.warns(GossamerWarning, match="X does not have valid feature names, but MLP was"):
        check_feature_names(NUMBERS, np.array(["a", "b"], object), "x")
    with pytest.warns(GossamerWarning, match="X has feature names, but MLP was fitted without"):
        check_feature_names(Frame(["a", "b"], NUMBERS), None, "x")


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
    with pytest.raises(InputError, match="y holds labels, but sizes end in 1; give one output"):
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


LABELS, CLASSES = np.array([0, 0, 0, 1]), np.array(["a", "b"])


def test_balanced_classes_weigh_alike() -> None:
    weights = with_classes(None, "balanced", LABELS, CLASSES)
    np.testing.assert_allclose(weights, [2 / 3, 2 / 3, 2 / 3, 2])


def test_a_mapping_multiplies_the_weights_of_rows() -> None:
    weights = with_classes(np.array([1, 2, 1, 1], np.float32), {"b": 3}, LABELS, CLASSES)
    np.testing.assert_allclose(weights, np.array([1, 2, 1, 3]) / 1.75)


@pytest.mark.parametrize(("class_weight", "message"), [
    ({"c": 1}, "class_weight has the label 'c', which is not a class"),
    ({"a": -1}, "class_weight -1 of the label 'a': expected a finite number of 0 or more"),
    ({"a": 0, "b": 0}, "class_weight is zero for every row"),
    ("even", "class_weight 'even': expected 'balanced', a mapping from label to weight, or None")])
def test_wrong_weights(class_weight: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        with_classes(None, class_weight, LABELS, CLASSES)


def test_a_class_without_weight_is_never_predicted(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = blobs
    settings: dict[str, Any] = dict(hidden=(8,), learning_rate=0.05, device="host")
    mlp = MLP(class_weight={2: 0}, **settings).fit(x, labels)
    assert set(mlp.predict(x)) == {0, 1}
    weight = np.where(labels == 2, 0.0, 1.0)
    np.testing.assert_array_equal(MLP(**settings).fit(x, labels, weight).coefs_[0], mlp.coefs_[0])


def test_where_class_weights_do_not_go(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = blobs
    with pytest.raises(InputError, match="class_weight: y holds regression targets; expected"):
        MLP(class_weight="balanced", device="host").fit(x, x[:, 0])
    with pytest.raises(InputError, match="'balanced': partial_fit cannot know how many"):
        MLP(class_weight="balanced", device="host").partial_fit(x, labels)
