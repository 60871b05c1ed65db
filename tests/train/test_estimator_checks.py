"""scikit-learn's own checks of estimators."""

from __future__ import annotations

import warnings
from unittest import SkipTest

import pytest

from gossamer.train import MLP

_EXCEPTIONS = {
    "check_do_not_raise_errors_in_init_or_set_params":
        "a parameter that MLP lacks is refused, and the one that it has is named",
    "check_sample_weight_equivalence_on_dense_data":
        "rows that are repeated or left out make other batches, and so other updates",
    "check_sample_weight_equivalence_on_sparse_data": "as for dense data"}
_OF_LABELS = {"check_supervised_y_2d": "a column of labels is taken as them without a warning"}
_OF_NUMBERS = {"check_regressor_multioutput": "predictions are float32, as what computes them is"}
_OF_OPEN_TASK = {
    "check_classifiers_one_label": "its labels are floats, which without a task are numbers",
    "check_classifiers_regression_target": "floats are learnt as numbers, without a task"}
"""Checks that an MLP does not pass, and why."""


@pytest.mark.parametrize(("task", "exceptions"), [
    ("classification", {**_EXCEPTIONS, **_OF_LABELS}),
    ("regression", {**_EXCEPTIONS, **_OF_NUMBERS}),
    (None, {**_EXCEPTIONS, **_OF_LABELS, **_OF_OPEN_TASK})])
def test_all_checks_but_the_named_ones_pass(task: str | None, exceptions: dict[str, str]) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if not hasattr(checks, "estimator_checks_generator"):
        pytest.skip("scikit-learn before 1.6 has no list of checks")
    passed, failed = set(), {}
    for mlp, check in checks.estimator_checks_generator(MLP(task=task, device="host")):
        name = check.func.__name__
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(mlp)
            passed.add(name)
        except SkipTest:
            pass
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    assert {name: text for name, text in failed.items() if name not in exceptions} == {}
    assert len(passed) > 40
    assert not passed - {*failed} & {*exceptions}, "an exception that is none any longer"
