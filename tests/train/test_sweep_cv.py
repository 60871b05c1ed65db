"""SweepCV beside scikit-learn's searches, and scikit-learn's checks of it."""

from __future__ import annotations

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError, NotFittedError, TrainingError
from gossamer.train import MLP
from gossamer.train.sweep_cv import SweepCV
from tests.train.test_scikit_learn import TASKS, passed_checks, trained_soon

Blobs = tuple[np.ndarray, np.ndarray]

BASE = MLP(hidden=(6,), epochs=6, learning_rate=0.05, patience=None, device="host")


def test_the_best_is_trained_on_all_samples(blobs: Blobs) -> None:
    grid = {"learning_rate": [1e-6, 0.05], "seed": [3, 4]}
    search = gossamer.SweepCV(BASE, grid, cv=3, return_train_score=True).fit(*blobs)
    results = search.cv_results_
    assert results["params"] == [{"learning_rate": rate, "seed": seed}
                                 for rate in (1e-6, 0.05) for seed in (3, 4)]
    assert search.best_params_ == results["params"][search.best_index_]
    assert search.best_params_["learning_rate"] == 0.05
    assert search.best_score_ == results["mean_test_score"].max()
    assert results["rank_test_score"][search.best_index_] == 1
    assert results["n_resources"].tolist() == [6] * 4 and search.n_splits_ == 3
    np.testing.assert_array_equal(results["split1_test_score"], search.result_.scores[:, 1])
    assert results["mean_train_score"][search.best_index_] > 0.9
    assert (results["mean_fit_time"] > 0).all()
    alone = MLP(**{**BASE.get_params(), **search.best_params_}).fit(*blobs)
    np.testing.assert_array_equal(search.predict_proba(blobs[0]), alone.predict_proba(blobs[0]))
    assert search.score(*blobs) == alone.score(*blobs)
    assert search.classes_.tolist() == [0, 1, 2] and search.n_features_in_ == 4
    assert not hasattr(search, "feature_names_in_") and not hasattr(BASE, "coefs_")


def test_its_results_have_the_keys_of_scikit_learn(blobs: Blobs) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    grid = [{"hidden": [(4,), (5, 5)]}, {"seed": [1]}]
    theirs = selection.GridSearchCV(BASE, grid, cv=2, return_train_score=True).fit(*blobs)
    ours = SweepCV(BASE, grid, cv=2, return_train_score=True).fit(*blobs)
    absent = {*theirs.cv_results_} - {*ours.cv_results_}
    assert absent == {"mean_score_time", "std_score_time"}
    for key in ("best_estimator_", "best_score_", "best_params_", "best_index_", "refit_time_",
                "n_splits_", "classes_", "n_features_in_"):
        assert hasattr(ours, key) and hasattr(theirs, key), key


def test_it_is_cloned_and_nested(blobs: Blobs) -> None:
    base, selection = (pytest.importorskip(f"sklearn.{name}") for name in (
        "base", "model_selection"))
    search = SweepCV(BASE, {"seed": [0, 1]}, cv=2)
    copied = base.clone(search).set_params(estimator__epochs=3, cv=3)
    assert (copied.estimator.epochs, copied.cv, search.estimator.epochs, search.cv) == (3, 3, 6, 2)
    assert selection.cross_val_score(copied, *blobs, cv=2).min() > 0.3
    with pytest.raises(InputError, match="MLP has no parameter 'rate'"):
        search.set_params(estimator__rate=1)


def test_halving(blobs: Blobs) -> None:
    search = SweepCV(BASE, {"learning_rate": [1e-6, 1e-5, 1e-4, 0.05]}, cv=2, halving=2).fit(*blobs)
    assert sorted(search.cv_results_["n_resources"]) == [2, 2, 3, 6]
    assert search.best_params_ == {"learning_rate": 0.05}


def test_what_it_refuses(blobs: Blobs) -> None:
    with pytest.raises(NotFittedError, match="this SweepCV is not trained yet: call fit first"):
        SweepCV(BASE, {}).predict(blobs[0])
    search = SweepCV(BASE, {}, refit=False, cv=2).fit(*blobs)
    with pytest.raises(NotFittedError, match="call fit with refit=True first"):
        search.score(*blobs)
    with pytest.raises(InputError, match="estimator is an int: expected an MLP"):
        SweepCV(3, {}).fit(*blobs)  # type: ignore[arg-type]
    diverging = MLP.published((4, 1), activation="relu", device="host", learning_rate=1e6)
    with pytest.raises(TrainingError, match="there is no best config"):
        SweepCV(diverging, {}, cv=2).fit(blobs[0], blobs[0][:, 0])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_all_checks_but_those_of_mlp_pass(task: str) -> None:
    passed_checks(SweepCV(trained_soon(task), {"seed": [0]}, cv=2), TASKS[task])
