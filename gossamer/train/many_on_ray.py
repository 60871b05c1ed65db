"""Runs train_many() on the workers of a Ray cluster: each worker trains a share of the networks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.errors import InputError
from gossamer.ray import shared_out
from gossamer.train.mlp import MLP

SHARE = 8
"""The number of configs in a share. The number does not depend on the size of the cluster, so that
a run may be resumed in another cluster."""


@dataclass(frozen=True)
class _Share:
    """The work of one worker.

    configs: the configs that the worker trains.
    checkpoint: the folder of their checkpoints; None without checkpoints.
    """

    configs: Sequence[MLP | Mapping[str, Any]]
    checkpoint: Path | None


def rows_and_networks(configs: Sequence[MLP | Mapping[str, Any]], address: str,
                      checkpoint: str | Path | None, resume: bool,
                      train_many: Callable[..., Any], given: Mapping[str, Any]
                      ) -> tuple[list[dict[str, Any]], list[MLP]]:
    """Returns the rows and the networks of a ManyResult, in the order of the configs.

    Where a worker is lost, its share is trained again, from the checkpoints of the share if there
    are any.

    address: the cluster, as gossamer.ray.connect takes it; "" for Ray's own choice.
    train_many: the function that trains a share.
    given: the other arguments of train_many.
    Raises InputError where the folder holds another run, or arguments are wrong.
    """
    folder = None if checkpoint is None else Path(checkpoint).absolute()
    if folder is not None:
        _check(folder, resume)
    shares = [_Share(configs[start:start + SHARE],
                     None if folder is None else folder / f"share-{start // SHARE:05}")
              for start in range(0, len(configs), SHARE)]
    rows: list[dict[str, Any]] = []
    networks: list[MLP] = []
    for index, result in enumerate(shared_out(
            _trained, shares, {"train_many": train_many, "more": given}, address or None)):
        rows += [{**row, "config": row["config"] + index * SHARE} for row in result.rows]
        networks += result.networks
    return rows, networks


def _check(folder: Path, resume: bool) -> None:
    """Makes the folder of checkpoints. Raises InputError where the folder holds checkpoints
    already and the run is not resumed."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
    if not resume and any(folder.glob("share-*")):
        raise InputError(f"{folder}: has checkpoints already; give resume=True to go on from "
                         "them, or another folder")


def _trained(share: _Share, given: Mapping[str, Any]) -> Any:
    """Returns the ManyResult of a share. Training goes on from the share's checkpoints where there
    are any: the run is then resumed, or an earlier worker was lost."""
    train_many, more = given["train_many"], given["more"]
    # a worker may have been lost before it wrote its first file
    is_begun = share.checkpoint is not None and (
        share.checkpoint.is_dir() and any(share.checkpoint.iterdir()))
    return train_many(share.configs, **more, checkpoint=share.checkpoint, resume=is_begun)
