"""PyTorch behind LitServe, which is compared with `gossamer serve`.

    python -m gossamer_bench.peers.litserve_server litserve mobilenet_v2 cuda:0 8000

The server takes one photo a request, (height, width, 3) uint8, and answers with the network's first
output. Photo and output are bytes in base 64 within JSON, because LitServe takes no plain bytes.
"""

from __future__ import annotations

import base64
import sys

import litserve
import numpy as np

import gossamer
from gossamer_bench.peers.http_servers import network, photo_shape

_MOST_BATCH = 8
_BATCH_WAIT_S = 0.002
"""Seconds for which LitServe waits for a batch to become full."""


class PhotoApi(litserve.LitAPI):
    """The network as LitServe calls it.

    model: file of the network, or its name in the zoo.
    device: name of the device that computes the network.
    """

    def __init__(self, model: str, device: str) -> None:
        super().__init__(max_batch_size=_MOST_BATCH, batch_timeout=_BATCH_WAIT_S)
        self._model = model
        self._device = device

    def setup(self, _: str) -> None:
        """Makes the network, in the process that computes it."""
        self._shape = photo_shape(gossamer.load(self._model))
        self._compute = network(self._model, self._device, _MOST_BATCH)

    def decode_request(self, request: dict[str, str]) -> np.ndarray:
        """Returns the photo of a request."""
        return np.frombuffer(base64.b64decode(request["photos"]), np.uint8).reshape(self._shape)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Returns photos as one array."""
        return np.stack(inputs)

    def predict(self, photos: np.ndarray) -> np.ndarray:
        """Returns the outputs for an array of photos."""
        # LitServe does not call batch() for a request that comes alone: `photos` is then one photo
        return self._compute(photos if photos.ndim == 4 else photos[None])

    def unbatch(self, outputs: np.ndarray) -> list[np.ndarray]:
        """Returns the outputs of each photo."""
        return list(outputs)

    def encode_response(self, output: np.ndarray) -> dict[str, str]:
        """Returns an answer."""
        return {"scores": base64.b64encode(output.tobytes()).decode()}


if __name__ == "__main__":
    _, given_model, given_device, given_port = sys.argv[1:]
    server = litserve.LitServer(PhotoApi(given_model, given_device), accelerator="cpu",
                                workers_per_device=1)
    server.run(port=int(given_port), host="127.0.0.1", generate_client_file=False,
               log_level="error")
