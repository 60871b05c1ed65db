"""Many networks whose training is interrupted and resumed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.train import MLP, ManyResult, cross_validate, sweep, train_many
from gossamer.train.loop import checkpoint
from gossamer.train.loop.train_loop import TrainLoop
from tests.golden import Golden

Blobs = tuple[np.ndarray, np.ndarray]
Stop = Callable[[int], None]


@pytest.fixture
def stop_before(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Returns a function that raises Ctrl-C before the n-th epoch of all that are trained, or never
    for n = 0."""
    step = TrainLoop.step
    epochs_begun = 0

    def stopped(self: TrainLoop) -> float:
        nonlocal epochs_begun
        epochs_begun += 1
        if epochs_begun == stop_epoch:
            raise KeyboardInterrupt
        return step(self)

    stop_epoch = 0

    def stop(epoch: int) -> None:
        nonlocal stop_epoch, epochs_begun
        stop_epoch, epochs_begun = epoch, 0

    monkeypatch.setattr(TrainLoop, "step", stopped)
    monkeypatch.setattr(checkpoint.Throttle, "due", True)
    return stop


def _configs(device: Device) -> list[MLP]:
    """Returns configs of two groups: five networks, of which one ends after an epoch, and one."""
    base = MLP.published((4, 5, 3), device=device, epochs=4, shuffle=True)
    return [*sweep(base, {"seed": [0, 1], "learning_rate": [0.1, 0.3]}),
            MLP.published((4, 5, 3), device=device, epochs=1),
            MLP.published((4, 3), device=device, epochs=3)]


def _assert_same(actual: ManyResult, expected: ManyResult) -> None:
    assert _without_seconds(actual.rows) == _without_seconds(expected.rows)
    for network, reference in zip(actual.networks, expected.networks, strict=True):
        for y, r in zip((*network.coefs_, *network.intercepts_),
                        (*reference.coefs_, *reference.intercepts_), strict=True):
            np.testing.assert_array_equal(y, r)
        assert (network.device_, network.algorithm_) == (reference.device_, reference.algorithm_)


def _without_seconds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _stopped(*arguments: Any, **options: Any) -> tuple[ManyResult, str]:
    with pytest.raises(KeyboardInterrupt) as caught:
        train_many(*arguments, **options)
    result = caught.value.result
    assert isinstance(result, ManyResult)
    return result, "".join(traceback.format_exception_only(caught.value))


def test_what_was_trained_is_in_the_exception(device: Device, blobs: Blobs,
                                              stop_before: Stop) -> None:
    uninterrupted = train_many(_configs(device), *blobs)
    stop_before(3)
    result, error_text = _stopped(_configs(device), *blobs)
    assert error_text.endswith(
        "what was trained until then is in this exception's attribute `result`\n")
    assert [row["state"] for row in result.rows] == [
        *["stopped after epoch 2"] * 4, "trained", "not begun"]
    assert [row["epochs"] for row in result.rows] == [2, 2, 2, 2, 1, 0]
    assert np.isfinite(result.scores[:5]).all() and np.isnan(result.scores[5, 0])
    assert result.rows[5]["train_accuracy"] is None
    np.testing.assert_array_equal(result.networks[4].coefs_[0],
                                  uninterrupted.networks[4].coefs_[0])
    assert result.networks[0].loss_curve_ == uninterrupted.networks[0].loss_curve_[:2]
    assert result.best in result.networks[:5]
    with pytest.raises(InputError, match="not trained yet"):
        result.networks[5].predict(blobs[0])


@pytest.mark.parametrize("stop_epoch", [1, 2, 4, 5, 6, 7])
def test_it_goes_on_to_the_same_bits(device: Device, blobs: Blobs, tmp_path: Path,
                                     stop_before: Stop, stop_epoch: int) -> None:
    uninterrupted = train_many(_configs(device), *blobs)
    folder = tmp_path / "sweep"
    stop_before(stop_epoch)
    result, error_text = _stopped(_configs(device), *blobs, checkpoint=folder)
    assert f"and in {folder}: resume=True goes on from there" in error_text
    begun = [f"{row['config']}.checkpoint" for row in result.rows if row["epochs"]]
    assert sorted(path.name for path in folder.iterdir()) == begun
    stop_before(0)
    if not begun:
        with pytest.raises(InputError, match="has no checkpoint of these networks to resume from"):
            train_many(_configs(device), *blobs, checkpoint=folder, resume=True)
        return
    _assert_same(train_many(_configs(device), *blobs, checkpoint=str(folder), resume=True),
                 uninterrupted)
    # once more, where the folder has the checkpoints of all networks
    _assert_same(train_many(_configs(device), *blobs, checkpoint=folder, resume=True),
                 uninterrupted)


def test_stopped_again_before_it_went_on(blobs: Blobs, tmp_path: Path, stop_before: Stop,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    base = MLP.published((4, 5, 3), device="host", epochs=4)
    stop_before(3)
    first, _ = _stopped([base], *blobs, checkpoint=tmp_path / "c")
    stop_before(1)
    monkeypatch.setattr(TrainLoop, "__init__", _interrupted)
    second, _ = _stopped([base], *blobs, checkpoint=tmp_path / "c", resume=True)
    assert second.rows[0]["state"] == "stopped after epoch 2"
    np.testing.assert_array_equal(second.networks[0].predict(blobs[0]),
                                  first.networks[0].predict(blobs[0]))


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_folds_go_on(blobs: Blobs, tmp_path: Path, stop_before: Stop) -> None:
    mlp = MLP.published((4, 5, 3), device="host", epochs=3, shuffle=True)
    uninterrupted = cross_validate(mlp, *blobs, folds=3)
    stop_before(3)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(mlp, *blobs, folds=3, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"0-fold{fold}.checkpoint" for fold in range(3)]
    stop_before(0)
    _assert_same(cross_validate(mlp, *blobs, folds=3, checkpoint=tmp_path, resume=True),
                 uninterrupted)
    with pytest.raises(InputError, match=r"0-fold0\.checkpoint: .* training on other data"):
        cross_validate(mlp, blobs[0][:90], blobs[1][:90], 3, checkpoint=tmp_path, resume=True)
    (tmp_path / "0-fold0.checkpoint").replace(tmp_path / "0-fold1.checkpoint")
    with pytest.raises(InputError, match=r"0-fold1\.checkpoint: .* training on other data"):
        cross_validate(mlp, *blobs, folds=3, checkpoint=tmp_path, resume=True)


def test_wrong_folders(blobs: Blobs, tmp_path: Path, golden: Golden) -> None:
    configs = [MLP.published((4, 3), epochs=1, device="host")]
    train_many(configs, *blobs, checkpoint=tmp_path / "c")
    (tmp_path / "file").touch()
    golden.refusals("training: folders of checkpoints", {
        case: lambda of=of, options=options: train_many(of, *blobs, **options)
        for case, of, options in (
            ("no folder", configs, {"resume": True}),
            ("absent", configs, {"checkpoint": tmp_path / "absent", "resume": True}),
            ("a file", configs, {"checkpoint": tmp_path / "file"}),
            ("in no folder", configs, {"checkpoint": tmp_path / "a" / "b"}),
            ("another network", sweep(configs[0], {"learning_rate": [0.1]}),
             {"checkpoint": tmp_path / "c", "resume": True}))}, tmp_path)
