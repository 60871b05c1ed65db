"""The binary networks through a plan. A sign may turn a rounding error into another bit. Therefore
each layer is tested on the reference's bits, and from end to end every image that differs is traced
to a bit that a rounding error has turned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from threadpoolctl import threadpool_limits

import gossamer
from gossamer.device.base import Device
from tests.model.onnx_models import runtime, save
from tests.plan.choose.fusions.toy import make_plan
from tests.plan.photos import mnist, photos
from tests.plan.signs import Sign, cut, first_turned, signs, with_outputs
from tests.tolerances import normalised_error, tolerance

BINARY = ("cnv_w1a1_cifar10", "lfc_w1a1_mnist", "resnet18_w1a1_cifar10")

IMAGES = {
    "cnv_w1a1_cifar10": {"host": 200, "opencl": 200, "cuda": 1000},
    "lfc_w1a1_mnist": {"host": 1000, "opencl": 1000, "cuda": 1000},
    # 1.1 GFLOP an image: one thread of the host computes 20 images a second, and OpenCL on a
    # processor a few
    "resnet18_w1a1_cifar10": {"host": 100, "opencl": 20, "cuda": 1000},
}
"""Number of images from end to end for each kind of device: 1,000 where they take a second."""

BLOCK = 20
"""Number of images that run at once. An image is traced within its block, as another batch size may
take other kernels, which turn other bits."""

Results = dict[str, np.ndarray]


class Reference:
    """A binary network, and the outputs of ONNX Runtime for blocks of photos."""

    def __init__(self, name: str, path: Path, folder: Path) -> None:
        self.proto = onnx.load(path)
        self.signs = signs(self.proto)
        self.output = self.proto.graph.output[0].name
        self.name, self.path, self._folder = name, path, folder
        self.outputs = cache(self._outputs)

    def block(self, index: int) -> np.ndarray:
        return photos(self.name, 1000)[index * BLOCK : (index + 1) * BLOCK]

    def _outputs(self, index: int) -> np.ndarray:
        return runtime(self.proto, {"image": self.block(index)})[0]

    def values(self, images: np.ndarray) -> Results:
        """Returns the output, all bits and all values that signs read."""
        names = dict.fromkeys(name for sign in self.signs for name in (sign.before, sign.bits))
        names.pop("image", None)
        model = with_outputs(self.proto, names)
        return {"image": images,
                **dict(zip((self.output, *names), runtime(model, {"image": images}),
                           strict=True))}

    def saved(self, model: onnx.ModelProto, name: str) -> str:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return str(save(model, folder))


@pytest.fixture(scope="module")
def references(shared_model: Callable[[str], Path],
               tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    return cache(lambda name: Reference(name, shared_model(name), tmp_path_factory.mktemp(name)))


@pytest.mark.shared
@pytest.mark.parametrize("name", BINARY)
def test_every_layer_agrees_given_the_reference_bits(
    name: str, quick_device: Device, references: Callable[[str], Reference]
) -> None:
    images = 4 if quick_device.api == "opencl" else 16
    reference = references(name)
    expected = reference.values(reference.block(0)[:images])
    model = cut(reference.proto, {sign.bits: expected[sign.bits].shape
                                  for sign in reference.signs})
    plan = gossamer.compile(reference.saved(model, "cut"), quick_device)
    results = plan(*[expected[info.name] for info in plan.inputs])
    assert len(results) >= {"cnv_w1a1_cifar10": 9, "lfc_w1a1_mnist": 4,
                            "resnet18_w1a1_cifar10": 17}[name]
    for info, result in zip(plan.outputs, results, strict=True):
        error = normalised_error(result, expected[info.name])
        assert error <= tolerance("network"), info.name


@pytest.mark.shared
@pytest.mark.parametrize("name", BINARY)
def test_photos_agree_end_to_end(name: str, quick_device: Device,
                                 references: Callable[[str], Reference]) -> None:
    """At least 99% of the images agree, no class changes, and every other image is explained by a
    sign of a value near 0."""
    reference = references(name)
    count = IMAGES[name][quick_device.api]
    plan = gossamer.compile(str(reference.path), quick_device)
    first_bits = list({sign.before: sign.bits for sign in reversed(reference.signs)}.values())
    watched = gossamer.compile(
        reference.saved(with_outputs(reference.proto, first_bits), "watched"), quick_device)
    differing = 0
    # threads of BLAS would wait for one another, as other tests run beside this one
    with threadpool_limits(1, user_api="blas"):
        for index in range(count // BLOCK):
            images, expected = reference.block(index), reference.outputs(index)
            y = plan(images)
            np.testing.assert_array_equal(y.argmax(axis=1), expected.argmax(axis=1))
            different = [i for i in range(BLOCK) if normalised_error(y[i:i + 1], expected[i:i + 1])
                         > tolerance("network")]
            differing += len(different)
            # the first block is traced even where it agrees
            if different or index == 0:
                named = dict(zip((info.name for info in watched.outputs), watched(images),
                                 strict=True))
                assert normalised_error(named[reference.output], y) <= tolerance("network")
                turned = _turned(reference, named, images)
                assert set(different) <= set(turned), "an output differs and no bit does"
    assert differing <= max(count // 100, 1 if count < 1000 else 0)


def _turned(reference: Reference, ours: Results, images: np.ndarray) -> list[int]:
    """Returns the images that have other bits than the reference. Fails unless the first of these
    bits is the sign of a value near 0."""
    expected = reference.values(images)
    traced = [sign for sign in reference.signs if sign.bits in ours]
    return [i for i in range(len(images)) if first_turned(
        traced, {name: array[i] for name, array in ours.items()},
        {name: array[i] for name, array in expected.items()})]


@pytest.mark.shared
def test_mnist_score(quick_device: Device, shared_model: Callable[[str], Path]) -> None:
    images, labels = mnist()
    assert len(images) == len(labels) == 10_000
    plan = gossamer.compile(str(shared_model("lfc_w1a1_mnist")), quick_device)
    # argmax takes the first of equal classes
    classes = np.concatenate([plan(images[start : start + 1000]).argmax(axis=1)
                              for start in range(0, len(images), 1000)])
    assert np.count_nonzero(classes == labels) == 9834


@pytest.mark.shared
@pytest.mark.parametrize(("name", "layers"), [("cnv_w1a1_cifar10", 8), ("lfc_w1a1_mnist", 4),
                                              ("resnet18_w1a1_cifar10", 20)])
def test_bits_compute_the_same_outputs(name: str, layers: int, quick_device: Device,
                                       shared_model: Callable[[str], Path]) -> None:
    path, is_host = str(shared_model(name)), not quick_device.compiles
    images = photos(name, BLOCK if is_host else 2)
    on_floats = gossamer.compile(path, quick_device,
                                 only="host_im2col" if is_host else "im2col_gemm")
    bits = "host_direct_popcount" if is_host else "popcount"
    on_bits = gossamer.compile(path, quick_device, only=bits)
    np.testing.assert_array_equal(on_bits(images), on_floats(images))
    taken = [row["algorithm"] for row in on_bits.report(len(images)).rows]
    assert taken.count(bits) == layers


@pytest.mark.shared
def test_measured_plans_keep_the_classes(quick_compiled: Device, tmp_path: Path,
                                         shared_model: Callable[[str], Path]) -> None:
    graph = gossamer.load(str(shared_model("lfc_w1a1_mnist")))
    images, _ = mnist()
    expected = gossamer.compile(graph, "host")(images[:100])
    plan = make_plan(graph, tmp_path, quick_compiled.name, only="popcount")
    np.testing.assert_array_equal(plan(images[:100]), expected)
    packed = [step.variant.inputs[0].format.is_packed for step in plan.program(100).steps
              if step.layer.op == "gemm"]
    assert packed == [True] * 4


SIGNS = [Sign("x", "a"), Sign("y", "b")]


def _traced(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> str | None:
    reference = {"x": x, "a": np.sign(x), "y": y, "b": np.sign(y)}
    return first_turned(SIGNS, {"a": a, "b": b}, reference)


def test_tracing_names_the_first_sign_that_turned() -> None:
    x, y = np.float32([3, -4, 2e-5]), np.float32([1, 1, -1])
    assert _traced(np.sign(x), np.sign(y), x, y) is None
    assert _traced(np.float32([1, -1, -1]), np.float32([-1, -1, 1]), x, y) == "a"


@pytest.mark.parametrize(("a", "b"), [([1, -1, -1], [1, 1, -1]), ([1, 1, 1], [1, 1, -1]),
                                      ([1, -1, 1], [1, -1, -1])])
def test_tracing_refuses_a_sign_of_a_value_away_from_0(a: list[float], b: list[float]) -> None:
    x, y = np.float32([3, -4, 4e-5]), np.float32([1, 1e-3, -1])
    with pytest.raises(AssertionError, match=r"bits of \w differ"):
        _traced(np.float32(a), np.float32(b), x, y)
