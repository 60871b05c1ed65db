"""Small samples and networks for records of trainings, and their texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.train import MLP
from tests.recorded import as_text, digest

X = np.array([[0, 3, 1], [2, 5, 1], [1, 0, 1], [4, 4, 1], [3, 1, 1], [5, 2, 1], [0, 0, 1],
              [1, 4, 1], [2, 2, 1], [4, 0, 1], [3, 3, 1], [5, 5, 1]], float) / 4
Y: dict[str, Any] = {
    "labels": [0, 1, 0, 1, 1, 2, 0, 1, 0, 2, 1, 2], "texts": [*"abacbcabacbc"],
    "numbers": (X @ [[1.0], [-0.5], [0]])[:, 0], "two numbers": X @ np.eye(3)[:, :2],
    "few numbers": [0.0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]}


def numbers_text(values: Any, digits: int = 3) -> str:
    """Returns numbers with that many digits."""
    return ",".join(f"{value:.{digits}g}" for value in np.ravel(values))


def trained_text(mlp: MLP, x: Any = X) -> str:
    """Returns a text of a trained network."""
    parameters = [f"{value:.5g}" for part in (*mlp.coefs_, *mlp.intercepts_)
                  for value in part.ravel()]
    shapes = "-".join(str(part.shape[0]) for part in mlp.coefs_)
    predicted = mlp.predict(x)
    return (f"{mlp.n_iter_} epochs, {mlp.kept_epoch_} kept, {shapes} {digest(parameters)} "
            f"losses {numbers_text(mlp.loss_curve_)} scores "
            f"{numbers_text(getattr(mlp, 'validation_scores_', []))} "
            f"{'classes ' + as_text(mlp.classes_.tolist()) if hasattr(mlp, 'classes_') else ''} "
            f"{as_text(getattr(mlp, 'feature_names_in_', np.array([])).tolist())} "
            f"{mlp.n_features_in_} {mlp.device_} {mlp.algorithm_} predicts "
            f"{numbers_text(predicted, 2) if predicted.dtype.kind == 'f' else digest(predicted)}")


def small_mlp(**values: Any) -> MLP:
    """Returns a network that trains within milliseconds, with some settings of its own."""
    return MLP(**{"hidden": (3,), "epochs": 4, "learning_rate": 0.125, "device": "host",
                  "batch": 5, **values})
