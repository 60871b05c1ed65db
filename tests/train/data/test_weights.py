"""Weights of classes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.train import MLP
from gossamer.train.data.weights import with_classes

LABELS, CLASSES = np.array([0, 0, 0, 1]), np.array(["a", "b"])


def test_balanced_classes_weigh_alike() -> None:
    weights = with_classes(None, "balanced", LABELS, CLASSES)
    np.testing.assert_allclose(weights, [2 / 3, 2 / 3, 2 / 3, 2])


def test_a_mapping_multiplies_the_weights_of_rows() -> None:
    weights = with_classes(np.array([1, 2, 1, 1], np.float32), {"b": 3}, LABELS, CLASSES)
    np.testing.assert_allclose(weights, np.array([1, 2, 1, 3]) / 1.75)


@pytest.mark.parametrize(("class_weight", "message"), [
    ({"c": 1}, "class_weight has the label 'c', which no class has"),
    ({"a": -1}, "class_weight -1 of the label 'a': expected a finite number of 0 or more"),
    ({"a": 0, "b": 0}, "class_weight leaves every row the weight zero"),
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
    with pytest.raises(InputError, match="class_weight: y holds numbers to learn; expected labels"):
        MLP(class_weight="balanced", device="host").fit(x, x[:, 0])
    with pytest.raises(InputError, match="'balanced': partial_fit does not know how often"):
        MLP(class_weight="balanced", device="host").partial_fit(x, labels)
