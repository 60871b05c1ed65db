"""Uses of an MLP in scikit-learn: cloning, storing, and searches over parameters in processes."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.train import MLP

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
    process = subprocess.run([sys.executable, "-c", (
        "import pickle, numpy as np\n"
        "mlp = pickle.load(open('mlp.pickle', 'rb'))\n"
        "print(mlp.device.name, mlp.predict(np.load('x.npy')).tolist())")],
        cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "there is no device 'cuda:99' here; usable devices: " in process.stderr
    best = find().name
    assert f"; {best} takes its place" in process.stderr
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
