"""Modules on a GPU, as their users call them, beside eager, torch.compile and a captured graph.

    python -m tests.torch.contest --networks resnet18,mobilenet_v2 --batches 1,3,64 --budget 30

Each network of torchvision is in float16 and channels_last. A row has its error against float64
over that of torch, which may be 2, and the microseconds of a call with a synchronisation after it:
of gossamer's optimised module and of its bound call, of eager torch, of the module compiled by
torch.compile as it is called, and of a graph captured of the compiled module.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torchvision

import gossamer
from gossamer.torch.comparison import as_array
from tests.networks.__main__ import with_statistics
from tests.tolerances import normalised_error

NETWORKS = "resnet18,resnet50,mobilenet_v2,shufflenet_v2_x1_0,efficientnet_b0"
LARGEST_RATIO = 2.0
CALLS = 200
WARM_UP = 20


def call_us(function: Callable[[], Any]) -> float:
    """Returns the median time of a call with the synchronisation after it."""
    times = []
    for index in range(WARM_UP + CALLS):
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        if index >= WARM_UP:
            times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def captured(function: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that replays a graph of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def row(name: str, exact: Any, module: Any, fast: Any, x: Any, compiled: Any) -> bool:
    """Prints the row of a network at a batch size, and returns whether its outputs are right."""
    start = time.monotonic()
    y = fast(x)
    seconds = time.monotonic() - start
    expected, theirs = as_array(exact(x.double())), as_array(module(x))
    errors = normalised_error(as_array(y), expected), normalised_error(theirs, expected)
    bound = fast.plan.bind(x.permute(0, 2, 3, 1) if fast.plan.inputs[0].shape[-1] == 3 else x)
    start = time.monotonic()
    compiled(x)
    compile_seconds = time.monotonic() - start
    replay = captured(lambda: compiled(x))
    ours, others = [call_us(call) for call in (lambda: fast(x), bound)], [
        call_us(call) for call in (lambda: module(x), lambda: compiled(x), replay)]
    ratio = errors[0] / errors[1]
    host = sum(step["device"] == "host" for step in fast.report(len(x)).rows)
    print(f"{name:20} {len(x):3} {ratio:6.2f} {ours[0]:8.0f} {ours[1]:8.0f} "
          + " ".join(f"{other:8.0f}" for other in others)
          + f" {others[1] / ours[0]:6.2f} {others[2] / ours[0]:6.2f} {seconds:6.0f} "
          f"{compile_seconds:6.0f} {host:4}", flush=True)
    return ratio <= LARGEST_RATIO and y.dtype == module(x).dtype


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--batches", default="1,3,64")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--budget", type=float, default=30, help="seconds of measuring a batch")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, microseconds a call\n"
          f"{'network':20} {'N':>3} {'error':>6} {'gossamer':>8} {'bound':>8} {'eager':>8} "
          f"{'compiled':>8} {'captured':>8} {'/comp.':>6} {'/capt.':>6} {'plan s':>6} "
          f"{'comp s':>6} host")
    right = []
    for name in options.networks.split(","):
        torch.manual_seed(0)
        module = getattr(torchvision.models, name)(weights=None).cuda()
        module = with_statistics(module, torch.randn(16, 3, 224, 224, device="cuda"))
        module = module.half().to(memory_format=torch.channels_last)
        exact = copy.deepcopy(module).double()
        with torch.inference_mode():
            images = [torch.randn(int(batch), 3, 224, 224, device="cuda").half().to(
                memory_format=torch.channels_last) for batch in options.batches.split(",")]
        start = time.monotonic()
        fast = gossamer.optimize(module, torch.randn(1, 3, 224, 224, device="cuda").half().to(
            memory_format=torch.channels_last), effort=options.effort, budget=options.budget)
        print(f"{name}: optimised in {time.monotonic() - start:.0f} s", flush=True)
        with torch.inference_mode():
            for x in images:
                torch._dynamo.reset()
                right.append(row(name, exact, module, fast, x, torch.compile(module)))
        del fast
    print(f"{sum(right)} of {len(right)} right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
