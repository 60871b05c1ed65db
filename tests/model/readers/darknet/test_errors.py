"""Warnings of Darknet files, missing ones and damaged ones; tests/golden has the other errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError, ModelError, UnsupportedError
from tests.model.readers.darknet.networks import NETWORKS, net, section
from tests.model.readers.darknet.test_reader import load_text

TINY = net(8, 8) + section("convolutional", filters=2, size=1, activation="leaky")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A folder with a network of one convolution of 8 numbers."""
    load_text(tmp_path, TINY)
    return tmp_path


def test_what_darknet_computes_and_gossamer_does_not_has_a_class_of_its_own(tiny: Path) -> None:
    (tiny / "net.cfg").write_text(TINY.replace("leaky", "plse"))
    with pytest.raises(UnsupportedError):
        gossamer.load(tiny / "net.cfg")


def test_numbers_that_are_too_large(tiny: Path) -> None:
    (tiny / "net.cfg").write_text(TINY.replace("filters=2", f"filters={2**31}"))
    with pytest.raises(ModelError, match=f"'{2**31}', expected a .* from 1 to {2**31 - 1}"):
        gossamer.load(tiny / "net.cfg")


def test_unknown_keys_are_told(tiny: Path) -> None:
    text = TINY + "".join(f"key{index}=1\n" for index in range(7))
    (tiny / "net.cfg").write_text(text)
    (warning,) = gossamer.load(tiny / "net.cfg").warnings
    assert warning == (f"{tiny / 'net.cfg'}: unknown keys are ignored: "
                       + ", ".join(f"'key{index}' of [convolutional] (line {10 + index})"
                                   for index in range(5)) + " and 2 more")


def test_one_file_without_the_other(tiny: Path) -> None:
    with pytest.raises(InputError, match=r".weights holds the weights of a Darknet network: name "
                                         r"the .cfg file first"):
        gossamer.load(tiny / "net.weights")
    (tiny / "net.weights").rename(tiny / "other.weights")
    with pytest.raises(InputError, match=r"net.cfg: its weights file is missing: there is no "
                                         r".*net.weights; put it there, or name it: --weights "
                                         r"FILE.weights, or in Python gossamer.load"):
        gossamer.load(tiny / "net.cfg")
    with pytest.raises(InputError, match=r"cannot read .*absent.weights: No such file"):
        gossamer.load(tiny / "net.cfg", weights=tiny / "absent.weights")
    with pytest.raises(InputError, match=r"cannot read .*absent.cfg: No such file"):
        gossamer.load(tiny / "absent.cfg", weights=tiny / "other.weights")
    with pytest.raises(InputError, match=r"cannot read .*absent.cfg: No such file"):
        gossamer.load(tiny / "absent.cfg")
    for model in ("net.onnx", "mobilenet_v2"):
        with pytest.raises(InputError, match=f"{model}: .*takes no further file of weights; leave"):
            gossamer.load(model, weights="other.weights")
    with pytest.raises(InputError, match="takes no further file of weights; leave out b"):
        gossamer.load(tiny / "net.cfg", "a", weights="b")


def test_weights_that_are_not_finite_are_told(tiny: Path) -> None:
    content = bytearray((tiny / "net.weights").read_bytes())
    content[-4:] = np.float32(np.nan).tobytes()
    (tiny / "net.weights").write_bytes(content)
    (warning,) = gossamer.load(tiny / "net.cfg").warnings
    assert "weights 'convolutional_0.weights' of layer 0 [convolutional]" in warning


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_give_no_other_errors(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    load_text(tmp_path, NETWORKS["yolov4_tiny"])
    text = (tmp_path / "net.cfg").read_bytes()
    refused = 0
    for _ in range(60):
        changed = bytearray(text)
        for place in random.integers(0, len(text), 3):
            changed[place] = random.integers(32, 127)
        (tmp_path / "net.cfg").write_bytes(changed)
        try:
            gossamer.load(tmp_path / "net.cfg")
        except ModelError as error:
            refused += 1
            assert "net." in str(error) and "\n" not in str(error)
    assert refused > 20
