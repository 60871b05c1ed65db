"""Matrices from arrays, data frames and sparse matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from gossamer.errors import GossamerWarning, InputError
from gossamer.train.data.matrix import check_feature_names, feature_names, matrix
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


WRONG = {
    "a text": Frame(["age", "city"], [[1, "Oslo"], [2, "Rome"]]), "a list": [[1, 2], ["Oslo", 3]],
    "texts": NUMBERS.astype(str), "NaN": Frame(["age", "b"], [[1, 2], [np.nan, 3]]),
    "infinite": scipy.sparse.csr_array([[0, np.inf]]), "no columns": np.empty((2, 0))}


def test_what_is_wrong_is_named(golden: Golden) -> None:
    golden.refusals("samples: matrices", {case: partial(matrix, values, None, "x")
                                          for case, values in WRONG.items()})


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
