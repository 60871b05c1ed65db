"""Fixtures: the files that the verb `train` reads and writes."""

import pytest

from tests.cli.train.small import LABELS, save_csv


@pytest.fixture
def samples(tmp_path):
    return save_csv(tmp_path / "samples.csv", LABELS)


@pytest.fixture
def model(tmp_path):
    return tmp_path / "model.onnx"
