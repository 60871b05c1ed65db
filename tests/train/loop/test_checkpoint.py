from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import GossamerWarning, InputError
from gossamer.train import MLP, Progress
from gossamer.train.loop import checkpoint
from tests.golden import Golden

Blobs = tuple[np.ndarray, np.ndarray]
SETTINGS: dict[str, Any] = {"momentum": 0.6, "shuffle": True, "learning_rate": 0.1, "batch": 2,
                            "schedule": ("step", 2, 0.5)}


def _mlp(**settings: Any) -> MLP:
    return MLP.published((4, 6, 3), **{"device": "host", **SETTINGS, **settings})


def _bits(mlp: MLP) -> bytes:
    return b"".join(part.tobytes() for part in (*mlp.coefs_, *mlp.intercepts_)) + (
        np.array(mlp.loss_curve_).tobytes())


def _stop_after(epoch: int) -> Callable[[Progress], None]:
    def stop(progress: Progress) -> None:
        if progress.epoch == epoch:
            raise KeyboardInterrupt

    return stop


def test_going_on_gives_the_same_bits(device: Device, blobs: Blobs, tmp_path: Path) -> None:
    uninterrupted = _mlp(epochs=4, device=device).fit(*blobs)
    file = tmp_path / "net.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        _mlp(epochs=4, device=device).fit(*blobs, checkpoint=file, on_epoch=_stop_after(2))
    epochs: list[int] = []
    resumed = _mlp(epochs=4, device=device).fit(*blobs, checkpoint=str(file), resume=True,
                                               on_epoch=lambda p: epochs.append(p.epoch))
    assert epochs == [3, 4]
    assert _bits(resumed) == _bits(uninterrupted)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_more_epochs_than_at_first(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "c"
    _mlp(epochs=2).fit(*blobs, checkpoint=file)
    longer = _mlp(epochs=4).fit(*blobs, checkpoint=file, resume=True)
    assert _bits(longer) == _bits(_mlp(epochs=4).fit(*blobs))
    # no epochs are left to train
    assert _bits(_mlp(epochs=3).fit(*blobs, checkpoint=file, resume=True)) == _bits(longer)


def test_what_is_resumed_can_be_fitted_further(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "c"
    _mlp(epochs=2).fit(*blobs, checkpoint=file)
    resumed = _mlp(epochs=2).fit(*blobs, checkpoint=file, resume=True).partial_fit(*blobs)
    assert _bits(resumed) == _bits(_mlp(epochs=3).fit(*blobs))


def test_another_network_is_refused(blobs: Blobs, tmp_path: Path, golden: Golden) -> None:
    file = tmp_path / "c"
    _mlp(epochs=1).fit(*blobs, checkpoint=file)
    before = file.read_bytes()
    golden.refusals("training: checkpoints of other networks", {
        name: lambda name=name, value=value: _mlp().set_params(**{name: value}).fit(
            *blobs, checkpoint=file, resume=True)
        for name, value in {
            "sizes": (4, 7, 3), "learning_rate": 0.2, "momentum": 0.0, "schedule": "constant",
            "seed": 1, "shuffle": False, "activation": "tanh", "batch": 1,
            "initial": "glorot"}.items()}, tmp_path)
    assert file.read_bytes() == before


def test_other_data_are_refused(blobs: Blobs, tmp_path: Path) -> None:
    x, labels = blobs
    file = tmp_path / "c"
    _mlp(epochs=1).fit(x, labels, checkpoint=file)
    for other_x, other_labels in ((x[:-1], labels[:-1]), (x[::-1], labels), (x, labels[::-1])):
        with pytest.raises(InputError, match="is the checkpoint of training on other data"):
            _mlp().fit(other_x, other_labels, checkpoint=file, resume=True)


def test_damaged_files_are_refused(blobs: Blobs, tmp_path: Path, golden: Golden) -> None:
    file = tmp_path / "c"
    _mlp(epochs=1).fit(*blobs, checkpoint=file)
    content = file.read_bytes()

    def resume(content: bytes) -> None:
        file.write_bytes(content)
        _mlp().fit(*blobs, checkpoint=file, resume=True)

    places = {"25": 25, "100": 100, "in the middle": len(content) // 2, "last": len(content) - 1}
    golden.refusals("training: damaged checkpoints", {
        **{f"cut at {length}": partial(resume, content[:length]) for length in (60, 30)},
        "cut at its end": partial(resume, content[:-1]),
        "cut in the middle": partial(resume, content[:len(content) // 2]),
        **{f"byte {name}": partial(resume, content[:place] + bytes([content[place] ^ 1])
                                   + content[place + 1:]) for name, place in places.items()},
        **{repr(other): partial(resume, other) for other in (
            b"", content[:10], b"PK\3\4 another kind of file", b"gossamer checkpoint 1\n")}},
        tmp_path)


def test_a_wrong_path_is_reported_before_training(blobs: Blobs, tmp_path: Path,
                                                  golden: Golden) -> None:
    golden.refusals("training: checkpoints by their paths", {
        case: lambda options=options: _mlp().fit(*blobs, **options) for case, options in {
            "absent": {"checkpoint": tmp_path / "absent", "resume": True},
            "in no folder": {"checkpoint": tmp_path / "absent" / "c"},
            "no file": {"resume": True}}.items()}, tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        _mlp().fit(*blobs, checkpoint=tmp_path)


def test_a_full_disk_keeps_the_previous_one(blobs: Blobs, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c"
    replace, replaced = os.replace, 0

    def until_full(source: Any, target: Any) -> None:
        nonlocal replaced
        if Path(target) == file:
            replaced += 1
            if replaced > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", until_full)
    monkeypatch.setattr(checkpoint.Throttle, "due", True)
    mlp = _mlp(epochs=4)
    with pytest.warns(GossamerWarning) as warned:
        mlp.fit(*blobs, checkpoint=file)
    assert [str(warning.message) for warning in warned] == [
        f"checkpoint of epoch 3: {file}: cannot be written: No space left on device; the "
        "checkpoint of epoch 2 is kept; make sure that the disk has free space"]
    assert mlp.n_iter_ == 4
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    monkeypatch.undo()
    epochs: list[int] = []
    resumed = _mlp(epochs=4).fit(*blobs, checkpoint=file, resume=True,
                                 on_epoch=lambda p: epochs.append(p.epoch))
    assert epochs == [3, 4]
    assert _bits(resumed) == _bits(mlp)


def test_what_is_no_checkpoint_is_not_replaced(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    file.write_text("1,2,3")
    with pytest.raises(InputError, match="is not a checkpoint of this version of gossamer: give"):
        _mlp().fit(*blobs, checkpoint=file)
    assert file.read_text() == "1,2,3"
    for content in (b"", b"gossamer check", b"gossamer checkpoint 0\nof another version"):
        file.write_bytes(content)
        assert _mlp(epochs=1).fit(*blobs, checkpoint=file).n_iter_ == 1
        assert checkpoint._read(file)[0]["epochs_done"] == 1


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_cannot_be_read_is_not_replaced(
        blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool) -> None:
    file = tmp_path / "c"
    file.write_text("1,2,3")
    path_open = Path.open

    def refusing(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return path_open(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        # not by the file's mode, which does not keep root from reading
        patch.setattr(Path, "open", refusing)
        with pytest.raises(InputError, match=r"c: cannot be read \(Permission denied\), and may "
                                             r"not be a checkpoint: give another file"):
            _mlp(epochs=1).fit(*blobs, checkpoint=file, resume=resume)
    assert file.read_text() == "1,2,3"


def test_a_new_training_replaces_an_old_checkpoint(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "c"
    _mlp(epochs=3).fit(*blobs, checkpoint=file)
    _mlp(epochs=1, seed=5).fit(*blobs, checkpoint=file)
    assert _mlp(epochs=1, seed=5).fit(*blobs, checkpoint=file, resume=True).n_iter_ == 1


def test_writing_takes_little_of_the_time(blobs: Blobs, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = 0.0, []
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(perf_counter=lambda: now))

    def save(path: Path, state: Any, digest: str) -> None:
        nonlocal now
        now += 1
        saved.append(state.epochs_done)

    def epoch_takes_a_while(progress: Progress) -> None:
        nonlocal now
        now += 7

    monkeypatch.setattr(checkpoint, "save", save)
    _mlp(epochs=8).fit(*blobs, checkpoint=tmp_path / "c", on_epoch=epoch_takes_a_while)
    # the first one, then each after 20 times as long as the one before took, and the last one
    assert saved == [1, 4, 7, 8]


def test_the_header_is_plain_json(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "c"
    _mlp(epochs=1, schedule="inverse", learning_rate=np.float32(0.25),
         batch=np.int64(3)).fit(*blobs, checkpoint=file)
    header = checkpoint._read(file)[0]
    assert json.loads(json.dumps(header)) == header
    assert (header["settings"]["learning_rate"], header["settings"]["batch"]) == (0.25, 3)
    assert header["epochs_done"] == 1
