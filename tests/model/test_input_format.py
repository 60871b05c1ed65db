"""Inputs in other formats, and photos, come to a network with the numbers that its metadata say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.io.images import PRESETS, Preprocessing
from gossamer.model.builder import GraphBuilder
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import ModelMetadata
from gossamer.model.photos import PhotoReader, batch_as_taken, taking_photos


def graph(*inputs: tuple[str, tuple[int | None, ...], str]) -> Graph:
    """Returns a graph without layers, whose outputs are its inputs."""
    build = GraphBuilder("net")
    for name, shape, dtype in inputs:
        build.input(name, shape, dtype)
        build.output(name, shape, dtype)
    return build.finish()


IMAGE = ("x", (None, 3, 8, 6), "float32")


@pytest.mark.parametrize("make, message", [
    (lambda: InputFormat("int8"),
     "dtype 'int8': expected one of float32, float16, bfloat16, uint8"),
    (lambda: InputFormat("uint8", "HWC"), "layout 'HWC': expected one of NCHW, NHWC"),
    (lambda: InputFormat(std=0), "std 0: expected numbers other than 0"),
    (lambda: InputFormat(scale=(1, 0, 1)), "scale 1, 0, 1: expected numbers other than 0"),
    (lambda: InputFormat(mean=float("nan")), "mean nan: expected one finite number"),
    (lambda: InputFormat(std=(1, float("inf"), 1)), "std 1, inf, 1: expected one finite number"),
    (lambda: InputFormat(mean=()), "mean (): expected one finite number"),
    (lambda: InputFormat(mean="dark"), "mean 'dark': expected a number"),
    (lambda: InputFormat(mean=(0, 0), std=(1, 1, 1)), "mean has 2 numbers and std has 3 numbers"),
    (lambda: InputFormat(scale=1e30, std=1e-30), "quotients are too large for float32"),
    (lambda: InputFormat.from_metadata({"mean": 0}), "the data config has no mean and std"),
    (lambda: InputFormat.from_metadata(ModelMetadata()), "does not say how photos are prepared"),
    (lambda: InputFormat.from_metadata(PRESETS["binary"]), "rounded to sign"),
])
def test_wrong_fields_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("inputs, formats, message", [
    ([IMAGE], InputFormat(mean=(1, 2)), "mean has 2 numbers, input 'x' has 3 channels"),
    ([IMAGE], {"z": InputFormat("uint8")}, "net has no input 'z'; its inputs: 'x'"),
    ([IMAGE], {"x": "uint8"}, "the format of 'x' is 'uint8', expected an InputFormat"),
    ([IMAGE], "pictures", "inputs 'pictures': expected an InputFormat"),
    ([IMAGE], "photos", "does not say how photos are prepared"),
    ([("x", (None, 5), "float32")], InputFormat("uint8", "NHWC"),
     "has 2 dimensions; a format with layout NHWC needs an input of 4 dimensions"),
    ([("x", (None, 3, 5), "float32")], InputFormat(std=(1, 2, 3)), "one number per channel"),
    ([("x", (None, 3, 8, 6), "int64")], InputFormat("uint8"),
     "is int64, and only float32 inputs, such as images, can have a format"),
    ([IMAGE, ("y", (None, 4), "float32")], InputFormat("uint8"),
     "has the inputs 'x', 'y'; pass a mapping"),
])
def test_formats_that_do_not_fit_the_network_are_refused(
        inputs: list[tuple[str, tuple[int | None, ...], str]], formats: Any,
        message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        with_formats(graph(*inputs), formats, None)


def test_an_output_dtype_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="output_dtype 'float64': output 'x' is float32, which can "
                                         "be returned as float32 or float16"):
        with_formats(graph(IMAGE), None, "float64")
    with pytest.raises(InputError, match="output 'x' is int64, which can be returned as int64"):
        with_formats(graph(("x", (None, 3), "int64")), None, "float16")


def test_callers_see_their_own_shapes_and_dtypes() -> None:
    made = with_formats(graph(IMAGE), InputFormat("uint8", "NHWC"), "float16")
    (given,), (returned,) = ([info.called for info in infos]
                             for infos in (made.inputs, made.outputs))
    assert (given.shape, given.dtype) == ((None, 8, 6, 3), "uint8")
    assert (returned.shape, returned.dtype) == ((None, 3, 8, 6), "float16")
    assert with_formats(made, InputFormat(), "float32") == graph(IMAGE)


def test_it_normalises_as_photos_are_prepared() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    for preprocessing in (PRESETS["imagenet"], PRESETS["unit"], replace(PRESETS["caffe"])):
        prepared = replace(preprocessing, channels="rgb").normalised(photo.astype(np.float32))
        made = InputFormat.from_metadata(preprocessing).as_network_takes(photo[None])
        np.testing.assert_allclose(made[0], prepared, rtol=1e-5, atol=1e-6)
    config = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "input_size": (3, 5, 4)}
    np.testing.assert_allclose(
        InputFormat.from_metadata(config).as_network_takes(photo[None])[0].transpose(1, 2, 0),
        (photo / 255 - config["mean"]) / config["std"], rtol=1e-5, atol=1e-6)


def test_numbers_that_are_alike_are_one() -> None:
    format_ = InputFormat(scale=(2, 2), mean=4, std=(2, 2))
    assert (format_.factors, format_.shifts) == ((1.0,), (-2.0,))
    assert InputFormat(scale=3, std=3).is_default
    assert str(InputFormat("uint8", "NHWC", mean=(1, 2), std=0.5)) == (
        "uint8 NHWC mean 1, 2 std 0.5")


PHOTOS = [np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8) for seed in range(2)]
PLAIN = Preprocessing((4, 6), scale=0.5, mean=(1.0, 2.0, 3.0), std=(2.0, 1.0, 4.0))


@pytest.mark.parametrize("prepare", [PLAIN, replace(PLAIN, channels="bgr"), Preprocessing(
    (4, 6), channels="grey"), Preprocessing((2, 2), 3), replace(PLAIN, rounding="signed8")])
def test_the_network_takes_the_same_numbers(prepare: Preprocessing) -> None:
    expected = prepare.batch(PHOTOS)
    graph = Graph("net", [ValueInfo("x", (None, *expected.shape[1:]))], [], [], {})
    (info,) = taking_photos(graph, prepare).inputs
    assert (info.given is None) == (prepare.rounding != "none")
    taken = batch_as_taken(prepare, info, PHOTOS)
    assert taken.dtype == ("uint8" if info.given else "float32")
    assert PhotoReader(prepare, info).form() == (taken[0].shape, taken.dtype)
    numbers = info.given.as_network_takes(taken) if info.given else taken
    np.testing.assert_allclose(numbers, expected, rtol=1e-5, atol=1e-5)
