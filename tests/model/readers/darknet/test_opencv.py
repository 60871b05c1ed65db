"""OpenCV's reader of Darknet's files computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gossamer
from tests.model.readers.darknet.interpreter import random_weights
from tests.model.readers.darknet.networks import NETWORKS
from tests.model.readers.darknet.test_reader import images_for
from tests.tolerances import normalised_error

cv2 = pytest.importorskip("cv2", reason='pip install "opencv-python-headless<5"')


@pytest.mark.parametrize("name", NETWORKS)
def test_raw_heads(name: str, tmp_path: Path) -> None:
    images = images_for(NETWORKS[name], 1)
    cfg = tmp_path / "net.cfg"
    cfg.write_text(NETWORKS[name])
    random_weights(cfg.with_suffix(".weights"), NETWORKS[name], images)
    graph = gossamer.load(cfg)
    outputs = gossamer.compile(graph, "host")(images)
    network = cv2.dnn.readNetFromDarknet(str(cfg), str(cfg.with_suffix(".weights")))
    network.setInput(images)
    kind = {"darknet19": "softmax", "darknet53": "softmax", "yolov4_csp": "logistic",
            "yolov7_tiny": "logistic"}.get(name, "conv")
    # OpenCV counts the activation of layer 2 as 3
    layers = [f"{kind}_{int(info.name.split('_')[1].split('.')[0]) + (kind == 'logistic')}"
              for info in graph.outputs]
    for y, expected in zip(outputs if isinstance(outputs, tuple) else (outputs,),
                           network.forward(layers), strict=True):
        # OpenCV adds 1e-6 to the variances, Darknet 1e-5
        assert normalised_error(y, np.reshape(expected, y.shape)) <= 1e-4
