"""The first call of a network that torch.compile compiles; needs torch."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch

from gossamer.bench.peers.graph_module import graph_module
from gossamer.bench.work import AbsentError
from gossamer.device.registry import find
from gossamer_bench.contender import processor_precisions
from gossamer_bench.fresh_process import Job


def first_call(job: Job) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the network's first output in its first call, and a dictionary with fields of a row.
    The field `seconds` is the time from torch.compile(module) to the end of the call. Raises
    AbsentError where torch does not run on the device."""
    device = find(job.device)
    on_cuda = device.runs_cuda_libraries
    if on_cuda and not torch.cuda.is_available():
        raise AbsentError("this torch sees no CUDA device: install a build for CUDA")
    if not on_cuda:
        processor_precisions([job.precision])
    place = torch.device("cuda", device.index) if on_cuda else torch.device("cpu")
    dtype = torch.float16 if job.precision == "fp16" else torch.float32
    _allow_tf32(job.precision == "tf32")
    module = graph_module(job.graph, len(job.x)).to(place, dtype)
    x = torch.from_numpy(job.x).to(place, dtype)
    # the first product opens the device and loads cuBLAS
    torch.ones(8, 8, device=place, dtype=dtype).matmul(torch.ones(8, 8, device=place, dtype=dtype))
    _synchronize(on_cuda)
    start = time.perf_counter()
    with torch.no_grad():
        results = torch.compile(module, dynamic=False)(x)
    _synchronize(on_cuda)
    seconds = time.perf_counter() - start
    output = results[0] if isinstance(results, tuple) else results
    return output.float().cpu().numpy(), {
        "seconds": seconds, "layout": "NCHW" if x.ndim == 4 else "row",
        "config": "mode default, batch norm folded"}


def _allow_tf32(allowed: bool) -> None:
    # torch warns that newer switches replace these two, but torch.compile reads these two
    with warnings.catch_warnings(action="ignore"):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed


def _synchronize(on_cuda: bool) -> None:
    if on_cuda:
        torch.cuda.synchronize()
