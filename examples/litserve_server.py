"""Serves a plan by LitServe: python examples/litserve_server.py [device] [port]

    curl -H 'Content-Type: application/json' -d '{"photo": "BASE64"}' localhost:8000/predict
"""

import base64
import sys

import litserve
import numpy as np

import gossamer
from gossamer.io.images import PRESETS, decode_image


class Classifier(litserve.LitAPI):
    def setup(self, device: str) -> None:
        name = sys.argv[1] if len(sys.argv) > 1 else None
        self.plan = gossamer.compile("mobilenet_v2", name, inputs="photos")

    def decode_request(self, request: dict) -> np.ndarray:
        return PRESETS["imagenet"].pixels(decode_image(base64.b64decode(request["photo"])))

    def batch(self, inputs: list) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, photos: np.ndarray) -> np.ndarray:
        return self.plan(photos if photos.ndim == 4 else photos[None])

    def encode_response(self, scores) -> dict:
        return {"class": int(scores.argmax())}


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(max_batch_size=8, batch_timeout=0.002),
                                accelerator="cpu")
    server.run(port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000, generate_client_file=False)
