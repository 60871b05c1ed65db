"""When training ends and which epoch is kept, against a plain loop over drawn results."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.train import MLP
from gossamer.train.data.samples import DataShape
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainState, Validation

LOSSES = [1.0, 1 + 2**-14, 1 - 2**-14, 1 - 2**-13, 0.5]
"""Of these, only the last two improve on 1 by the least gain, 0.0001."""


def plain(results: list[list[float]], by_score: bool, patience: int | None) -> tuple[int, int]:
    """Returns the last epoch and the kept one. results: the training loss, the score and the
    validation loss of each epoch. by_score: whether the epoch of the best validation is kept."""
    best, best_epoch, epoch = (-1.0, np.inf), 0, 0
    for epoch, (loss, *validation) in enumerate(results, 1):
        score, loss_of_score = validation if by_score else (0, loss)
        if score > best[0] or (score == best[0] and loss_of_score <= best[1] - 1e-4):
            best, best_epoch = (score, loss_of_score), epoch
        if epoch - best_epoch == patience or loss == 0.5:
            break
    return epoch, best_epoch if by_score else epoch


@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("patience", [None, 1, 2, 3])
@pytest.mark.parametrize("validated", [False, True])
def test_the_end_and_the_kept_epoch(keep: str, patience: int | None, validated: bool) -> None:
    rng = np.random.default_rng(0)
    settings = Settings.of(MLP(hidden=(), keep=keep, patience=patience, epochs=8,
                               target_error=0.5), DataShape(3, 2, 1, False))
    for _ in range(30):
        state = TrainState.start(settings)
        results = np.stack([rng.choice(values, 8) for values in (LOSSES, [0.5, 0.75], LOSSES)], 1)
        while not state.ended:
            loss, score, validation_loss = results[state.epochs_done]
            state.epochs_done += 1
            state.curve.append(loss)
            state.parameters = np.full_like(state.parameters, state.epochs_done)
            if validated:
                state.note_validation(Validation(validation_loss, score))
            else:
                state.note_loss()
        last, kept = plain(results.tolist(), validated and keep == "best", patience)
        assert state.epochs_done == last
        assert {state.kept_epoch, *state.kept_weights.tolist()} == {kept}
