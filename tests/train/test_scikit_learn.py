"""Uses of an MLP in scikit-learn: cloning, storing, and searches over parameters in processes."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import ConvergenceWarning, GossamerWarning, InputError, NotFittedError
from gossamer.train import MLP
from tests.processes import python
from tests.train.frames import Frame

Blobs = tuple[np.ndarray, np.ndarray]


def test_a_device_is_one_object_however_it_is_copied(device: Device) -> None:
    for copied in (copy.copy(device), copy.deepcopy({"a": [device]})["a"][0],
                   pickle.loads(pickle.dumps(device))):
        assert copied is device


def test_a_trained_network_is_stored_and_goes_on(device: Device, blobs: Blobs) -> None:
    mlp = MLP.published((4, 6, 3), device=device, momentum=0.5, shuffle=True).partial_fit(*blobs)
    for again in (pickle.loads(pickle.dumps(mlp)), copy.deepcopy(mlp)):
        assert again.device is device
        np.testing.assert_array_equal(again.predict_proba(blobs[0]), mlp.predict_proba(blobs[0]))
        again.partial_fit(*blobs)
        expected = copy.deepcopy(mlp).partial_fit(*blobs)
        np.testing.assert_array_equal(again.coefs_[0], expected.coefs_[0])
    assert mlp.n_iter_ == 1


def test_a_network_comes_to_a_machine_without_its_device(blobs: Blobs, tmp_path: Path) -> None:
    mlp = MLP.published((4, 6, 3), device="host", epochs=2).fit(*blobs)
    mlp.device = _Elsewhere()
    (tmp_path / "mlp.pickle").write_bytes(pickle.dumps(mlp))
    np.save(tmp_path / "x.npy", blobs[0])
    process = python("import pickle, numpy as np\n"
                     "mlp = pickle.load(open('mlp.pickle', 'rb'))\n"
                     "print(mlp.device.name, mlp.predict(np.load('x.npy')).tolist())",
                     cwd=tmp_path)
    assert "there is no device 'cuda:99' here; usable devices: " in process.stderr
    best = find().name
    assert f"; using {best} instead" in process.stderr
    assert process.stdout == f"{best} {mlp.predict(blobs[0]).tolist()}\n"


class _Elsewhere:
    """Pickles as a device of another machine does."""

    def __reduce__(self) -> Any:
        from gossamer.device.registry import find_or_best

        return find_or_best, ("cuda:99",)


def test_clones(device: Device, blobs: Blobs) -> None:
    base = pytest.importorskip("sklearn.base")
    mlp = MLP.published((4, 6, 3), device=device, epochs=2, schedule=("step", 1, 0.5)).fit(*blobs)
    clone = base.clone(mlp)
    assert clone.get_params() == mlp.get_params() and clone.device is device
    assert not hasattr(clone, "coefs_")
    np.testing.assert_array_equal(clone.fit(*blobs).coefs_[0], mlp.coefs_[0])


@pytest.mark.parametrize("processes", [None, 2])
def test_a_search_over_settings(device: Device, blobs: Blobs, processes: int | None) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    pipeline = pytest.importorskip("sklearn.pipeline")
    preparation = pytest.importorskip("sklearn.preprocessing")
    estimator = pipeline.make_pipeline(preparation.StandardScaler(),
                                       MLP.published((4, 6, 3), device=device, epochs=4,
                                                     shuffle=True))
    search = selection.GridSearchCV(estimator, {"mlp__learning_rate": [1e-6, 0.3]}, cv=3,
                                    n_jobs=processes).fit(*blobs)
    assert search.best_params_ == {"mlp__learning_rate": 0.3}
    assert search.best_estimator_[-1].device is device
    assert search.score(*blobs) >= 0.9


def test_folds_have_all_classes_alike(blobs: Blobs) -> None:
    """Folds have the same share of each class although the rows are sorted by class. Targets that
    are numbers have no classes."""
    selection = pytest.importorskip("sklearn.model_selection")
    sorted_rows = np.argsort(blobs[1], kind="stable")
    x, labels = blobs[0][sorted_rows], blobs[1][sorted_rows]
    mlp = MLP.published((4, 6, 3), epochs=8, shuffle=True, device="host")
    assert selection.cross_val_score(mlp, x, labels, cv=3).min() >= 0.9
    numbers = MLP.published((4, 1), activation="relu", learning_rate=0.01, epochs=20, shuffle=True,
                  device="host")
    mixed = blobs[0]
    assert selection.cross_val_score(numbers, mixed, mixed @ [1.0, 2, 3, 4], cv=3).min() > 0.9
    assert _classifies(mlp.fit(x, labels))
    assert not _classifies(numbers.fit(x, x[:, 0]))


def _classifies(mlp: MLP) -> bool:
    from sklearn.base import is_classifier

    return bool(is_classifier(mlp))


def test_a_data_frame_keeps_its_names(blobs: Blobs) -> None:
    names = ["a", "b", "c", "d"]
    frame = Frame(names, blobs[0])
    mlp = MLP(hidden=(8,), learning_rate=0.05, device="host").fit(frame, blobs[1])
    assert mlp.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(mlp.predict(frame), mlp.predict(frame[names]))
    reordered = frame[names[::-1]]
    for method in (mlp.predict, mlp.predict_proba):
        with pytest.raises(InputError, match="must be in the same order as they were in fit"):
            method(reordered)
    for use in (lambda: mlp.score(reordered, blobs[1]),
                lambda: mlp.partial_fit(reordered, blobs[1]),
                lambda: mlp.fit(frame, blobs[1], validation=(reordered, blobs[1]))):
        with pytest.raises(InputError, match="The feature names should match those"):
            use()
    mlp.fit(*blobs)
    assert not hasattr(mlp, "feature_names_in_")


def test_frames_of_pandas(blobs: Blobs) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(blobs[0], columns=["a", "b", "c", "d"])
    labels = pandas.Series(blobs[1]).map({0: "x", 1: "y", 2: "z"})
    mlp = MLP(hidden=(8,), learning_rate=0.05, device="host").fit(frame, labels)
    assert mlp.score(frame, labels) > 0.9
    with pytest.raises(InputError, match=r"x\[mlp.feature_names_in_\] puts them in order"):
        mlp.predict(frame[["b", "a", "c", "d"]])
    assert mlp.score(frame[["b", "a", "c", "d"]][mlp.feature_names_in_], labels) > 0.9


@pytest.mark.parametrize(("name", "own"), [
    ("random_state", "seed"), ("max_iter", "epochs"), ("hidden_layer_sizes", "hidden"),
    ("alpha", "weight_decay"), ("early_stopping", r"validation=\(x, y\) of fit\(\)")])
def test_parameters_of_scikit_learn_name_the_own_ones(name: str, own: str) -> None:
    message = (f"MLP has no parameter '{name}': scikit-learn's parameter of this name corresponds "
               f"to {own} here")
    with pytest.raises(InputError, match=message):
        MLP(**{name: 1})
    with pytest.raises(InputError, match=message):
        MLP().set_params(**{name: 1})


def test_logarithms_of_probabilities(blobs: Blobs) -> None:
    mlp = MLP(hidden=(8,), learning_rate=0.05, device="host").fit(*blobs)
    np.testing.assert_array_equal(mlp.predict_log_proba(blobs[0]),
                                  np.log(mlp.predict_proba(blobs[0])))
    with np.errstate(divide="raise"):  # a probability of 0 is no fault
        assert np.isneginf(mlp.predict_log_proba(blobs[0] * 1e4)).any()


def test_what_learns_numbers_has_no_probabilities(blobs: Blobs) -> None:
    assert hasattr(MLP(), "predict_proba") and not hasattr(MLP(task="regression"), "predict_proba")
    mlp = MLP(hidden=(4,), epochs=1, device="host").fit(blobs[0], blobs[0][:, 0])
    for name in ("predict_proba", "predict_log_proba"):
        assert not hasattr(mlp, name)
        with pytest.raises(InputError, match=f"{name}: only networks for classification"):
            getattr(mlp, name)


def test_a_few_whole_floats_may_be_labels(blobs: Blobs) -> None:
    x, labels = blobs
    mlp = MLP(hidden=(4,), epochs=1, device="host")
    with pytest.warns(GossamerWarning, match="only 3 different values, all whole: "):
        mlp.fit(x, labels.astype(float))
    with warnings.catch_warnings(action="error", category=GossamerWarning):
        warnings.simplefilter("ignore", ConvergenceWarning)
        mlp.fit(x, labels)
        mlp.fit(x, np.arange(len(x)) * 1.0)
        mlp.fit(x, labels + 0.5)
        mlp.set_params(task="regression").fit(x, labels.astype(float))


def test_training_that_does_not_converge_warns(blobs: Blobs) -> None:
    mlp = MLP(hidden=(4,), epochs=2, device="host")
    with pytest.warns(ConvergenceWarning, match="it still improved in its last 2 epochs"):
        mlp.fit(*blobs)
    exceptions = pytest.importorskip("sklearn.exceptions")
    with pytest.warns(exceptions.ConvergenceWarning):
        mlp.fit(*blobs)
    for settings in ({"patience": None}, {"patience": 3, "epochs": 500, "learning_rate": 0.05}):
        with warnings.catch_warnings(action="error", category=ConvergenceWarning):
            mlp.set_params(**settings).fit(*blobs)


def test_errors_are_those_of_scikit_learn_too(blobs: Blobs) -> None:
    exceptions = pytest.importorskip("sklearn.exceptions")
    with pytest.raises(exceptions.NotFittedError) as untrained:
        MLP().predict(blobs[0])
    assert isinstance(untrained.value, NotFittedError)
    stored = pickle.loads(pickle.dumps(untrained.value))
    assert type(stored) is NotFittedError and str(stored) == str(untrained.value)
    with pytest.raises(ValueError, match="x has 4 rows, but y has 3"):
        MLP().fit(blobs[0][:4], [0, 1, 2])


def test_sparse_samples(blobs: Blobs) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    mlp = MLP(hidden=(8,), epochs=3, device="host").fit(*blobs)
    of_sparse = MLP(hidden=(8,), epochs=3, device="host").fit(sparse.csr_matrix(blobs[0]), blobs[1])
    np.testing.assert_array_equal(of_sparse.coefs_[0], mlp.coefs_[0])
    np.testing.assert_array_equal(of_sparse.predict(sparse.coo_array(blobs[0])),
                                  mlp.predict(blobs[0]))


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


TASKS = {"classification": {**_EXCEPTIONS, **_OF_LABELS},
         "regression": {**_EXCEPTIONS, **_OF_NUMBERS},
         None: {**_EXCEPTIONS, **_OF_LABELS, **_OF_OPEN_TASK}}
"""The exceptions of an MLP, by its task."""


def trained_soon(task: str | None) -> MLP:
    """Returns an MLP that learns in a tenth of the epochs what the checks of scikit-learn ask."""
    return MLP(task=task, epochs=20, learning_rate=0.03, device="host")


def passed_checks(estimator: Any, exceptions: Collection[str]) -> tuple[set[str], set[str]]:
    """Returns the checks of scikit-learn that pass and those that fail, which are exceptions."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if not hasattr(checks, "estimator_checks_generator"):
        pytest.skip("scikit-learn before 1.6 has no list of checks")
    passed, failed = set(), {}
    for clone, check in checks.estimator_checks_generator(estimator):
        name = check.func.__name__
        try:
            with warnings.catch_warnings(action="ignore"):
                check(clone)
            passed.add(name)
        except SkipTest:
            pass
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    assert {name: text for name, text in failed.items() if name not in exceptions} == {}
    assert len(passed) > 40
    return passed, {*failed}


@pytest.mark.parametrize("task", TASKS)
def test_all_checks_but_the_named_ones_pass(task: str | None) -> None:
    passed, failed = passed_checks(trained_soon(task), TASKS[task])
    assert not (passed - failed) & {*TASKS[task]}, "an exception that is none any longer"
