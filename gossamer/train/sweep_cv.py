"""SweepCV: a sweep with the interface of scikit-learn's searches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from gossamer.errors import InputError, NotFittedError, kind_of
from gossamer.train.mlp import MLP
from gossamer.train.predictor import Estimator, classifiers_only, shared_with_scikit_learn
from gossamer.train.sweep import Grid, SweepResult, sweep

_NESTED = "estimator__"


class SweepCV(Estimator):
    """A search for the best parameters of an MLP, like scikit-learn's searches.

    SweepCV replaces GridSearchCV and, with `halving`, HalvingGridSearchCV. fit() cross-validates
    the MLP with each combination of a grid, on the folds of sweep(), and trains the best one on all
    samples.

    Parameters
    ----------
    estimator : MLP
        Network with the parameters that are not in the grid. It is not changed.
    param_grid : mapping from str to sequence, or sequence of such mappings
        Values to try for each parameter, as for sweep().
    cv : int
        Number of folds.
    halving : int, optional
        Factor of successive halving, as for sweep().
    refit : bool
        Whether to train an MLP with the best parameters on all samples; predict() and score()
        need this MLP.
    return_train_score : bool
        Whether `cv_results_` has the scores on the training data, too.
    n_jobs : int, optional
        Number of processes, as for `processes` of sweep(); -1 and None mean one for each
        processor.

    Attributes
    ----------
    cv_results_ : dict from str to array
        A value for each combination under "params", "param_NAME", "split0_test_score" (and so on),
        "mean_test_score", "std_test_score", "rank_test_score", "mean_fit_time", "std_fit_time" and
        "n_resources", the number of epochs.
    best_params_ : dict
        The best combination.
    best_index_ : int
        Index of the best combination.
    best_score_ : float
        Mean score of the best combination over its folds: accuracy, or R^2.
    best_estimator_ : MLP
        MLP with the best combination, trained on all samples; absent without `refit`.
    refit_time_ : float
        Seconds that the training of `best_estimator_` took; absent without `refit`.
    n_splits_ : int
        Number of folds.
    result_ : SweepResult
        The networks of all folds.
    """

    cv_results_: dict[str, Any]
    best_params_: dict[str, Any]
    best_index_: int
    best_score_: float
    best_estimator_: MLP
    refit_time_: float
    n_splits_: int
    result_: SweepResult

    def __init__(self, estimator: MLP, param_grid: Grid | Sequence[Grid], *, cv: int = 5,
                 halving: int | None = None, refit: bool = True, return_train_score: bool = False,
                 n_jobs: int | None = None) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.cv = cv
        self.halving = halving
        self.refit = refit
        self.return_train_score = return_train_score
        self.n_jobs = n_jobs

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor, by name.

        deep: whether to add the parameters of the estimator, under names such as
        estimator__learning_rate.
        """
        params = super().get_params()
        nested = self.estimator.get_params() if deep and isinstance(self.estimator, MLP) else {}
        return {**params, **{f"{_NESTED}{name}": value for name, value in nested.items()}}

    def set_params(self, **params: Any) -> Self:
        """Change parameters of the constructor, or of the estimator.

        Raises InputError for an unknown name.
        """
        super().set_params(**{name: value for name, value in params.items()
                              if not name.startswith(_NESTED)})
        nested = {name.removeprefix(_NESTED): value for name, value in params.items()
                  if name.startswith(_NESTED)}
        if nested:
            self.estimator.set_params(**nested)
        return self

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> SweepCV:
        """Cross-validate each combination, and train the best one on all samples.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.
        y : array_like, shape (n,) or (n, outputs)
            Labels or targets, as for MLP.fit().
        sample_weight : array_like of float, shape (n,), optional
            Weight of each sample, as for MLP.fit(). The scores of folds are not weighted.

        Returns
        -------
        SweepCV
            The search itself.

        Raises
        ------
        InputError
            If settings or data are wrong.
        TrainingError
            If every combination diverged in at least one fold, or if the training on all samples
            diverged.
        OutOfMemoryError
            If the device has no room.
        """
        if not isinstance(self.estimator, MLP):
            raise InputError(f"estimator is {kind_of(self.estimator)}: expected an MLP")
        self.result_ = result = sweep(
            self.estimator, self.param_grid, x, y, folds=self.cv, sample_weight=sample_weight,
            halving=self.halving, processes=None if self.n_jobs == -1 else self.n_jobs)
        self.cv_results_ = _cv_results(result, self.return_train_score)
        self.n_splits_, self.best_index_ = self.cv, result.best_config
        self.best_params_ = self.cv_results_["params"][self.best_index_]
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        if self.refit:
            start = time.perf_counter()
            best = type(self.estimator)(**self.estimator.get_params())
            self.best_estimator_ = best.set_params(**self.best_params_).fit(x, y, sample_weight)
            self.refit_time_ = time.perf_counter() - start
        return self

    def predict(self, x: Any) -> np.ndarray:
        """Predict with the best network, as MLP.predict() does."""
        return self._best.predict(x)

    @classifiers_only
    def predict_proba(self, x: Any) -> np.ndarray:
        """Predict probabilities with the best network, as MLP.predict_proba() does."""
        return self._best.predict_proba(x)

    @classifiers_only
    def predict_log_proba(self, x: Any) -> np.ndarray:
        """Predict logarithms of probabilities, as MLP.predict_log_proba() does."""
        return self._best.predict_log_proba(x)

    def score(self, x: Any, y: Any, sample_weight: Any = None) -> float:
        """Evaluate the best network, as MLP.score() does."""
        return self._best.score(x, y, sample_weight)

    @property
    def classes_(self) -> np.ndarray:
        """Labels in the order of the outputs; absent for regression."""
        return self._of_best("classes_")

    @property
    def n_features_in_(self) -> int:
        """Number of inputs."""
        return self._of_best("n_features_in_")

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the columns of x; absent if x had none."""
        return self._of_best("feature_names_in_")

    @property
    def _learns_numbers(self) -> bool:
        return getattr(self, "best_estimator_", self.estimator)._learns_numbers

    @property
    def _best(self) -> MLP:
        if not hasattr(self, "best_estimator_"):
            refit = "" if self.refit else "with refit=True "
            raise shared_with_scikit_learn(NotFittedError)(
                f"this SweepCV is not trained yet: call fit {refit}first")
        return self.best_estimator_

    def _of_best(self, name: str) -> Any:
        """Return an attribute of the best network. Raises AttributeError if it is missing."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"this SweepCV has no {name}: it is not trained yet")
        return getattr(self.best_estimator_, name)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether fit() was called."""
        return hasattr(self, "cv_results_")


def _cv_results(result: SweepResult, with_training: bool) -> dict[str, Any]:
    """Return the rows of a sweep as the attribute cv_results_ of scikit-learn's searches."""
    folds = result.scores.shape[1]
    firsts = result.rows[::folds]
    names = [key for key in firsts[0] if key.startswith("param_")]
    table: dict[str, Any] = {}
    for name in names:
        table[name] = np.ma.masked_all(len(firsts), object)
        for index, row in enumerate(firsts):
            table[name][index] = row[name]
    table["params"] = [{name.removeprefix("param_"): row[name] for name in names}
                       for row in firsts]
    seconds = result.values("seconds")
    table["mean_fit_time"], table["std_fit_time"] = seconds.mean(axis=1), seconds.std(axis=1)
    table["n_resources"] = result.values("epochs").max(axis=1).astype(int)
    kinds = {"test": result.scores}
    if with_training:
        kinds["train"] = result.values("train_accuracy")
    for kind, scores in kinds.items():
        for fold in range(folds):
            table[f"split{fold}_{kind}_score"] = scores[:, fold]
        table[f"mean_{kind}_score"] = scores.mean(axis=1)
        table[f"std_{kind}_score"] = scores.std(axis=1)
    means = np.nan_to_num(table["mean_test_score"], nan=-np.inf)
    table["rank_test_score"] = 1 + (means > means[:, None]).sum(axis=1)
    return table
