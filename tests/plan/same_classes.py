"""Runs the real binary networks on many images and compares their classes with ONNX Runtime's.

    python -m tests.plan.same_classes --images 1000 --device host,opencl:0 --models ../shared/models

The images are noise, and photos of scikit-image, whole and in crops. lfc_w1a1_mnist also computes
MNIST's test set, of which it gets 9834 of 10,000 right. ONNX Runtime computes each image as the
file says and with its own optimisations, which round otherwise: where a value before a sign is next
to 0 it gives two outputs, and sometimes two classes, either of which is allowed. Each network runs
without an effort, with effort "quick", and forced onto words of bits. A line says for each how many
classes and how many outputs are neither; the exit status is 1 where a class is.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.model.readers.onnx.reader import load_onnx
from gossamer.plan.plan import Plan
from tests.networks.compared import session_of
from tests.networks.rows import program
from tests.plan.photos import PHOTOS, PREPARED, mnist, photo, photos
from tests.tolerances import normalised_error, tolerance

NETWORKS = ("cnv_w1a1_cifar10", "lfc_w1a1_mnist", "resnet18_w1a1_cifar10")
MNIST_RIGHT = 9834
"""Images of MNIST's test set that lfc_w1a1_mnist gets right, as its authors state."""
BATCH = 8
"""Images that run at once, those of MNIST apart."""
MNIST_BATCH = 1000


@dataclass(frozen=True)
class Outcome:
    """How many images were compared, how many have a class that ONNX Runtime never gives, and how
    many such an output."""

    images: int
    classes: int
    outputs: int

    def __str__(self) -> str:
        return (f"{self.images} images: {self.classes} other classes, {self.outputs} other outputs "
                "than ONNX Runtime")


def noise(name: str, count: int) -> np.ndarray:
    """Returns inputs of a network from pictures of random pixels, the same in every run."""
    size = (28, 28) if name == "lfc_w1a1_mnist" else (32, 32)
    rng = np.random.default_rng(5)
    pictures = rng.integers(0, 256, (count, *size, 3), np.uint8)
    prepared = np.stack([PREPARED[name](picture) for picture in pictures])
    return prepared.reshape(count, -1) if name == "lfc_w1a1_mnist" else prepared


def whole_photos(name: str) -> np.ndarray:
    """Returns the photos of scikit-image as inputs of a network, each whole."""
    prepared = np.stack([PREPARED[name](photo(file)) for file in PHOTOS])
    return prepared.reshape(len(prepared), -1) if name == "lfc_w1a1_mnist" else prepared


def images_of(name: str, count: int) -> np.ndarray:
    """Returns `count` pictures of noise, as many crops of photos, and the photos."""
    return np.concatenate([noise(name, count), photos(name, count), whole_photos(name)])


def expected_outputs(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Returns what ONNX Runtime computes of a network's inputs, as the file says and optimised."""
    results = []
    for is_optimised in (False, True):
        session = session_of(proto, threads=1, is_optimised=is_optimised)
        name = session.get_inputs()[0].name
        results.append(np.concatenate([session.run(None, {name: block})[0]
                                       for block in _blocks(x, 50)]))
    return results


def compare(plan: Plan, x: np.ndarray, expected: Sequence[np.ndarray]) -> Outcome:
    """Compares a plan's outputs with those expected, of which each image may have any."""
    y = np.concatenate([plan(block) for block in _blocks(x, BATCH)])
    other_class = np.all([y.argmax(axis=1) != each.argmax(axis=1) for each in expected], axis=0)
    other_output = np.all([[normalised_error(ours[None], theirs[None]) > tolerance("network")
                            for ours, theirs in zip(y, each, strict=True)] for each in expected],
                          axis=0)
    return Outcome(len(x), int(np.count_nonzero(other_class)),
                   int(np.count_nonzero(other_output)))


def mnist_right(plan: Plan) -> int:
    """Returns how many images of MNIST's test set a plan gets right."""
    images, labels = mnist()
    # argmax takes the first of equal classes
    classes = np.concatenate([plan(block).argmax(axis=1) for block in _blocks(images, MNIST_BATCH)])
    return int(np.count_nonzero(classes == labels))


def forced(device: Device) -> str:
    """Returns the name of the algorithm that computes on words of bits on a device."""
    if not device.compiles:
        return "host_direct_popcount"
    return "wide_popcount" if device.on_processors else "popcount"


def _blocks(x: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (x[start:start + size] for start in range(0, len(x), size))


def main() -> int:
    parser = program("tests.plan.same_classes", __doc__)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help="by default all three")
    parser.add_argument("--images", type=int, default=1000, help="of noise, and crops of photos")
    parser.add_argument("--device", default="host", help="one or several, such as host,opencl:0")
    parser.add_argument("--models", type=Path, default=Path("../shared/models"),
                        help="the folder of the networks' .onnx.gz files")
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.names or NETWORKS:
        content = gzip.decompress((arguments.models / f"{name}.onnx.gz").read_bytes())
        x = images_of(name, arguments.images)
        expected = expected_outputs(onnx.load_from_string(content), x)
        print(f"{name}: ONNX Runtime gives two classes to "
              f"{np.count_nonzero(expected[0].argmax(axis=1) != expected[1].argmax(axis=1))} of "
              f"{len(x)} images", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(content)
            graph = load_onnx(path)
        for device in map(find, arguments.device.split(",")):
            for effort, only in ((None, None), ("quick", None), (None, forced(device))):
                start = time.monotonic()
                plan = gossamer.compile(graph, device, effort=effort, only=only)
                outcome = compare(plan, x, expected)
                wrong += outcome.classes
                text = f"{name} on {device.name}, effort {effort}, only {only}: {outcome}"
                if name == "lfc_w1a1_mnist":
                    right = mnist_right(plan)
                    wrong += right != MNIST_RIGHT
                    text += f"; {right} of 10,000 right on MNIST"
                print(f"{text} ({time.monotonic() - start:.0f} s)", flush=True)
                plan.close()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
