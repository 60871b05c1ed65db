"""Preparation and splitting of samples."""

import itertools

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.train.data.dataset import Dataset, Preparation, prepared, split


def dataset(x, shape=None, pixels=True) -> Dataset:
    x = np.asarray(x, np.float32)
    return Dataset(x, np.arange(len(x)), shape, pixels, "data")


def test_as_published():
    """Samples are scaled, binarised, and padded with zeros as evenly as possible."""
    data = prepared(dataset([[0, 127, 128, 255, 200, 1]], (2, 3)), Preparation(
        scale=True, threshold=0.5, pad=(5, 4)))
    assert data.shape == (5, 4) and data.x.shape == (1, 20) and not data.pixels
    assert data.x.dtype == np.float32
    assert data.x.reshape(5, 4).tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0],
                                              [0, 0, 0, 0], [0, 0, 0, 0]]


def test_no_samples_are_padded_too():
    data = prepared(dataset(np.empty((0, 6)), (2, 3)), Preparation(scale=True, pad=(5, 4)))
    assert data.x.shape == (0, 20) and data.shape == (5, 4)


def test_nothing_asked_nothing_changed():
    data = dataset([[0, 300]])
    assert prepared(data, Preparation()).x is data.x
    assert prepared(dataset([[0, 51, 255]]), Preparation(scale=True)).x.tolist() == [
        [0, np.float32(0.2), 1]]


@pytest.mark.parametrize("options, expected", [
    ({"scale": True}, "data: has values from -3 to 300; scaling to [0, 1] expects "
                      "values from 0 to 255"),
    ({"threshold": 0.5}, "data: has values from -3 to 300; binarising expects values from 0 "
                         "to 1, or from 0 to 255 with scaling"),
    ({"pad": (8, 8)}, "data: its samples have 2 values; only images can be padded"),
])
def test_what_cannot_be_prepared(options, expected):
    with pytest.raises(InputError) as caught:
        prepared(dataset([[-3, 300]]), Preparation(**options))
    assert str(caught.value) == expected


def test_padding_never_crops():
    with pytest.raises(InputError, match="its images are 2x3, which cannot be padded to 4x2"):
        prepared(dataset(np.zeros((1, 6)), (2, 3)), Preparation(pad=(4, 2)))


def test_padding_is_even():
    for height, width, above, left, more in itertools.product((1, 2), (1, 3), *[(0, 1)] * 3):
        pad = (height + 2 * above + more, width + 2 * left + more)
        picture = np.ones((1, height * width))
        padded = Preparation(pad=pad, shape=(height, width))(picture).reshape(pad)
        inner = padded[above:above + height, left:left + width]
        assert inner.all() and padded.sum() == inner.size


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("high", [1, 2, 128, 255, 256])
@pytest.mark.parametrize("low", [-1, 0])
def test_numbers_of_0_to_1_or_to_255_are_binarised(low, high, scale):
    most, steps = 255 if scale else 1, Preparation(scale, 0.5)
    if low < 0 or high > most:
        with pytest.raises(InputError, match=f"values from {low} to {high}; "):
            steps([[low, high]])
    else:
        assert steps([[low, high]]).tolist() == [[0, high / most >= 0.5]]


def test_split():
    data = dataset(np.arange(100)[:, None])
    training, validation = split(data, 0.2, seed=3)
    assert len(validation.x) == 20 and validation.source == "0.2 of data"
    assert sorted([*training.y, *validation.y]) == list(range(100))
    for part in (training, validation):
        assert part.y.tolist() == sorted(part.y) and part.x[:, 0].tolist() == part.y.tolist()
    assert validation.y.tolist() != list(range(80, 100))
    assert split(data, 0.2, seed=3)[1].y.tolist() == validation.y.tolist()
    assert split(data, 0.2, seed=4)[1].y.tolist() != validation.y.tolist()


@pytest.mark.parametrize("count", [2, 3, 9, 10])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7])
def test_each_sample_is_in_one_part(count, fraction):
    training, validation = split(dataset(np.zeros((count, 1))), fraction, seed=0)
    assert sorted([*training.y, *validation.y]) == list(range(count))
    assert len(validation.y) == round(fraction * count)


@pytest.mark.parametrize("fraction, count", [(0.001, 0), (0.999, 100)])
def test_a_split_leaves_some_of_both(fraction, count):
    with pytest.raises(InputError, match=f"{fraction:g} of its 100 samples are {count}; expected"):
        split(dataset(np.zeros((100, 1))), fraction, seed=0)
