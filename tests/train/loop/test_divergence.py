from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import TrainingError
from gossamer.train import MLP, Progress
from gossamer.train.data.samples import DataShape
from gossamer.train.loop.settings import Settings

Blobs = tuple[np.ndarray, np.ndarray]


def _linear(**settings: Any) -> MLP:
    return MLP.published((1, 1), **{"activation": "relu", "epochs": 5, "device": "host",
                                    **settings})


def test_it_says_at_which_sample(device: Device) -> None:
    x = np.ones((60, 1), np.float32)
    x[47] = 1e30
    with pytest.raises(TrainingError, match=(
            r"diverged in epoch 1 at sample 48 \(row 47\): its loss is inf, but the mean "
            r"loss of the first samples was .*; the network has the parameters after epoch "
            r"0: try a learning_rate below 0.3")):
        _linear(device=device).fit(x, x[:, 0])


def test_the_order_of_samples_is_not_that_of_rows(blobs: Blobs) -> None:
    x = np.ones((60, 1), np.float32)
    x[47] = 1e30
    rng = np.random.default_rng(0)
    rng.uniform(size=2)
    sample = 1 + rng.permutation(60).tolist().index(47)
    with pytest.raises(TrainingError, match=rf"at sample {sample} \(row 47\)"):
        _linear(shuffle=True).fit(x, x[:, 0])


def test_the_network_is_as_before_that_epoch(device: Device) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 1)).astype(np.float32)
    rates = [0.1, 0.1, 0.1, 1e6]
    mlp = _linear(device=device, learning_rate=1.0, schedule=lambda epochs: rates[epochs])
    with pytest.raises(TrainingError, match=r"diverged in epoch 4 at sample \d+ .*after epoch 3"):
        mlp.fit(x, 2 * x[:, 0])
    expected = _linear(device=device, learning_rate=1.0, epochs=3,
                   schedule=lambda epochs: rates[epochs]).fit(x, 2 * x[:, 0])
    assert mlp.n_iter_ == 3
    assert mlp.loss_curve_ == expected.loss_curve_
    np.testing.assert_array_equal(mlp.coefs_[0], expected.coefs_[0])
    assert mlp.score(x, 2 * x[:, 0]) > 0.9


def test_growth_without_infinities_counts_too() -> None:
    x = np.random.default_rng(0).standard_normal((50, 1)).astype(np.float32)
    with pytest.raises(TrainingError, match=r"its loss is [\d.]+e\+\d+, but the mean"):
        _linear(learning_rate=2.1).fit(x, x[:, 0])


@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize("epochs", [2, 3])
def test_the_last_update_of_an_epoch(epochs: int, validated: bool) -> None:
    """The losses before that update are finite; the parameters after it are not."""
    x = np.array([[0.0], [1e18]], np.float32)
    mlp = _linear(epochs=epochs, learning_rate=1.0, batch=1,
                  schedule=lambda epochs: [1e-37, 1e20, 1.0][epochs])
    with pytest.raises(TrainingError, match=(
            r"diverged in epoch 2 at its last sample: .*are no longer finite; the network has the "
            "parameters after epoch 1")):
        mlp.fit(x, [0.0, 0.0], validation=(x, [0.0, 0.0]) if validated else None)
    expected = _linear(epochs=1, learning_rate=1e-37).fit(x, [0.0, 0.0])
    assert mlp.n_iter_ == 1
    assert mlp.loss_curve_ == expected.loss_curve_
    np.testing.assert_array_equal(mlp.coefs_[0], expected.coefs_[0])


@pytest.mark.parametrize(("large", "batch", "message"), [
    ([0], 1, r"sample 1 \(row 0\): its loss is inf; the network"),
    ([2], 1, r"sample 3 \(row 2\): its loss is inf, but the mean loss .* was 0.509\d*; the"),
    ([5], 8, r"sample 6 \(row 5\): its loss is inf, but the mean loss .* was 0.509\d*; the"),
    ([11], 1, r"sample 12 \(row 11\): its loss is inf, but the mean loss .* was 0.[123]\d*; the")])
def test_what_a_loss_is_compared_with(large: list[int], batch: int, message: str) -> None:
    """A loss is never compared with itself, or with later ones."""
    x = np.ones((60, 1), np.float32)
    x[large] = 1e30
    with pytest.raises(TrainingError, match=message):
        _linear(batch=batch, learning_rate=0.1).fit(x, x[:, 0])


def test_an_easy_beginning_is_no_measure() -> None:
    """Training that begins with samples whose outputs are almost right does not count as diverged
    later."""
    x = np.random.default_rng(0).uniform(-1, 1, (200, 1)).astype(np.float32)
    x[:20] = 1e-5
    mlp = _linear(initial="glorot").fit(x, 2 * x[:, 0])
    assert mlp.score(x, 2 * x[:, 0]) > 0.99
    labels = np.arange(200) % 2
    settings = Settings.of(MLP.published((1, 2)), DataShape(200, 1, 2, True))
    weight, _ = settings.start(np.random.default_rng(0)).reshape(2, 2)
    x[:20] = 25 / (weight[1] - weight[0])
    labels[:20] = 1
    mlp = MLP.published((1, 2), loss="cross_entropy", learning_rate=1e-3, device="host", epochs=3)
    assert mlp.fit(x, labels).n_iter_ == 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [1e300, 1e20])
def test_a_rate_beyond_all_numbers(blobs: Blobs, factor: float) -> None:
    mlp = MLP.published((4, 3), epochs=4, schedule=("step", 1, factor), device="host")
    with pytest.raises(TrainingError, match=r"diverged in epoch \d .* below 0.3 \(the "
                                            r"schedule changed it to .* in this epoch\), or "
                                            r"scale x to values closer to 0"):
        mlp.fit(*blobs)


def test_the_last_good_checkpoint_stays(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "c"
    x = np.random.default_rng(0).standard_normal((50, 1)).astype(np.float32)
    rates = [0.1, 0.1, 1e6, 0.1]

    def schedule(epochs: int) -> float:
        return rates[epochs]

    def mlp(epochs: int) -> MLP:
        return _linear(learning_rate=1.0, schedule=schedule, epochs=epochs)

    epochs_reported: list[int] = []

    def on_epoch(progress: Progress) -> None:
        epochs_reported.append(progress.epoch)

    with pytest.raises(TrainingError, match="in epoch 3"):
        mlp(4).fit(x, x[:, 0], checkpoint=file, on_epoch=on_epoch)
    assert epochs_reported == [1, 2]
    resumed = mlp(2).fit(x, x[:, 0], checkpoint=file, resume=True)
    np.testing.assert_array_equal(resumed.coefs_[0], mlp(2).fit(x, x[:, 0]).coefs_[0])


def test_an_epoch_by_itself() -> None:
    x = np.ones((4, 1), np.float32)
    mlp = _linear().partial_fit(x, x[:, 0])
    with pytest.raises(TrainingError, match="diverged in epoch 2 at sample 2"):
        mlp.partial_fit(np.float32([[1], [1e30]]), [1.0, 1.0])
    assert mlp.n_iter_ == 1
    mlp.partial_fit(x, x[:, 0])
    assert mlp.n_iter_ == 2
