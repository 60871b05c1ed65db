"""Servers that are compared with `gossamer serve`: PyTorch behind the simplest handler of FastAPI,
and the same handler without a network.

    python -m gossamer_bench.peers.http_servers fastapi mobilenet_v2 cuda:0 8000

The servers take photos as bytes, (N, height, width, 3) uint8, and answer with the network's first
output as bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response

import gossamer
from gossamer.errors import InputError
from gossamer.model.input_format import InputFormat


def network(model: str, device: str, most: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns PyTorch's function from photos to outputs, for batches of up to `most` photos. On a
    GPU the function is compiled; on a processor it is eager, because torch.compile makes no faster
    code there. Raises InputError for a network that does not say how photos are prepared."""
    import torch

    from gossamer.bench.peers.graph_module import graph_module

    graph = gossamer.load(model)
    if graph.metadata.preprocessing is None:
        raise InputError(f"{model}: does not say how photos are prepared, which peers need")
    form = InputFormat.from_metadata(graph.metadata)
    place = torch.device(device if device.startswith("cuda") else "cpu")
    factors, shifts = (torch.tensor(numbers, device=place).view(1, -1, 1, 1)
                       for numbers in (form.factors, form.shifts))
    modules: dict[int, Any] = {}
    size = 1
    while size < 2 * most:
        module = graph_module(graph, size).eval().to(place)
        modules[size] = torch.compile(module) if place.type == "cuda" else module
        size *= 2

    @torch.no_grad()
    def compute(photos: np.ndarray) -> np.ndarray:
        count = len(photos)
        size = min(size for size in modules if size >= count)
        if size > count:
            photos = np.concatenate([photos, np.zeros((size - count, *photos.shape[1:]),
                                                      photos.dtype)])
        x = torch.from_numpy(photos).to(place).permute(0, 3, 1, 2).float() * factors + shifts
        y = modules[size](x)
        return (y[0] if isinstance(y, tuple) else y)[:count].cpu().numpy()

    for size in modules:
        for _ in range(3):
            compute(np.zeros((size, *photo_shape(graph)), np.uint8))
    return compute


def photo_shape(graph: Any) -> tuple[int, int, int]:
    """Returns height, width and channels of the photos that a network takes."""
    _, channels, height, width = graph.network_inputs[0].shape
    return height, width, channels


def _serve(model: str, device: str, port: int, *, is_empty: bool) -> None:
    """Runs a server whose handler computes each request alone, without batching. is_empty: whether
    the handler computes nothing."""
    shape = photo_shape(gossamer.load(model))
    compute = None if is_empty else network(model, device, 64)
    app = FastAPI()

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        body = await request.body()
        if compute is None:
            return Response(b"\0" * 4000, media_type="application/octet-stream")
        photos = np.frombuffer(body, np.uint8).reshape(-1, *shape)
        return Response(compute(photos).tobytes(), media_type="application/octet-stream")

    uvicorn.run(app, port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    kind, given_model, given_device, given_port = sys.argv[1:]
    _serve(given_model, given_device, int(given_port), is_empty=kind == "empty")
