"""Quantises networks to 8 bits by ONNX Runtime, in both of its forms, calibrated on photos.

    python -m tests.networks.export FOLDER --exporter torchscript --only "torchvision resnet18"
    python -m tests.networks.quantise OUT ../shared/models/mobilenetv2.onnx.gz \\
        ../shared/models/squeezenet_pruned.onnx.gz FOLDER/torchscript/torchvision-resnet18.onnx

For each float network the last command writes OUT/NAME-float.onnx.gz, OUT/NAME-qdq.onnx.gz and
OUT/NAME-qoperator.onnx.gz, packed as python -m tests.networks.packed packs, and OUT/NAME.npz with
photos that the calibration has not seen. python -m tests.networks.quantised compares and times
them. Photos are those of scikit-image, whose package has to be installed.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from gossamer.io.images import PRESETS, Preprocessing
from tests.networks.packed import SUFFIX, name_of, pack, restored
from tests.networks.rows import program
from tests.plan.photos import PREPARED, crops

FORMS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
_SEEN = 24
_AT_ONCE = 8


class _Photos(CalibrationDataReader):
    """Gives photos to the calibration, a few at once."""

    def __init__(self, name: str, photos: np.ndarray) -> None:
        self._feeds = iter([{name: photos[index:index + _AT_ONCE]}
                            for index in range(0, len(photos), _AT_ONCE)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantised(model: onnx.ModelProto, form: str, photos: np.ndarray) -> onnx.ModelProto:
    """Returns a network of 8 bits: int8 weights with a scale for each channel, and uint8 values
    between the layers. photos: inputs that are like later ones."""
    with tempfile.TemporaryDirectory() as folder:
        given, source, target = (str(Path(folder, f"{step}.onnx"))
                                 for step in ("given", "preprocessed", "quantised"))
        onnx.save(model, given)
        quant_pre_process(given, source, skip_symbolic_shape=True)
        quantize_static(source, target, _Photos(model.graph.input[0].name, photos),
                        quant_format=FORMS[form], per_channel=True,
                        weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8)
        return onnx.load(target)


def write(path: Path, out: Path, images: int, most_bytes: int) -> None:
    """Writes the files of a float network."""
    name, model = name_of(path), restored(path)
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    prepare = PREPARED.get(name, PRESETS["imagenet"]).fitted(shape)
    pictures = crops(_SEEN + images)
    photos = prepare.batch(pictures[:_SEEN])
    if photos.shape[1:] != tuple(shape[1:]):
        raise ValueError(f"{path}: takes inputs of shape {shape}, where photos have "
                         f"{list(photos.shape[1:])}")
    forms = {"float": model, **{form: quantised(model, form, photos) for form in FORMS}}
    for form, each in forms.items():
        (out / f"{name}-{form}{SUFFIX}").write_bytes(pack(each, most_bytes))
    _save(out / f"{name}.npz", prepare, pictures[_SEEN:])


def _save(path: Path, prepare: Preprocessing, pictures: Sequence[np.ndarray]) -> None:
    np.savez_compressed(path, pixels=prepare.pixel_batch(pictures), scale=prepare.scale,
                        mean=prepare.mean, std=prepare.std)


def main() -> int:
    parser = program("tests.networks.quantise", __doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE",
                        help="float networks that take photos, as .onnx or .onnx.gz")
    parser.add_argument("--images", type=int, default=32, help="photos for the comparison")
    parser.add_argument("--whole-below", type=float, default=5, metavar="MB",
                        help="packed files up to this size keep their weights (default: 5)")
    options = parser.parse_args()
    if missing := [str(path) for path in options.files if not path.exists()]:
        parser.error(f"no file {', '.join(missing)}")
    # the quantiser advises to preprocess networks that are preprocessed
    logging.getLogger().setLevel(logging.ERROR)
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        name = name_of(path)
        if not (options.out / f"{name}.npz").exists():
            write(path, options.out, options.images, int(1e6 * options.whole_below))
        sizes = {file.name: f"{file.stat().st_size / 1e6:.2f} MB"
                 for file in sorted(options.out.glob(f"{name}[-.]*"))}
        print(*(f"{file}: {size}" for file, size in sizes.items()), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
