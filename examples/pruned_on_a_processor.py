"""Compares ONNX Runtime and gossamer for a MobileNetV2 with zeros.

    python examples/pruned_on_a_processor.py PRUNED.onnx PHOTO

Create the file by `gossamer prune mobilenet_v2 --scope layer --sparsity 0.9 -o PRUNED.onnx`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import gossamer
from gossamer.io.images import PRESETS, load_image
from gossamer.io.labels.reader import class_names
from gossamer.io.text import duration_text

ROUNDS = 25


def timed(call: Callable[[], object]) -> float:
    """Return the microseconds of a call."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def main(pruned: str, photo: str) -> None:
    try:
        import onnxruntime
    except ImportError:
        print("ONNX Runtime, which is compared with, is not installed: pip install '.[host]'")
        return
    options = onnxruntime.SessionOptions()
    # otherwise, its threads would spin while gossamer is timed
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(pruned, options, providers=["CPUExecutionProvider"])
    plan = gossamer.compile(pruned, "host", effort="quick")
    x = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    name = session.get_inputs()[0].name
    calls = (lambda: session.run(None, {name: x}), lambda: plan(x))
    rounds = [[timed(call) for call in calls] for _ in range(ROUNDS)]
    picture = PRESETS["imagenet"].pixel_batch([load_image(photo)])
    names = class_names(None, 1000)
    before, after = (names[gossamer.compile(model, "host", inputs="photos")(picture).argmax()]
                     for model in ("mobilenet_v2", pruned))
    theirs_us, ours_us = map(statistics.median, zip(*rounds, strict=True))
    print(f"MobileNetV2 with 90% zeros, on this processor: ONNX Runtime {duration_text(theirs_us)}")
    seen = f"still sees {after}" if after == before else f"sees {after} instead of {before}"
    print(f"gossamer {duration_text(ours_us)}, {theirs_us / ours_us:.2f} times as fast; pruned "
          f"without training it {seen}")


if __name__ == "__main__":
    main(*sys.argv[1:])
