"""Training by PyTorch. The steps are written by hand, in place and without autograd. On CUDA, one
CUDA graph may contain many steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from gossamer.bench.peers.torch_calls import FLAGS
from gossamer.bench.work import AbsentError
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.training_work import RATE, EpochWork, TrainingRun, flat, ready

_MOST_STEPS = 100
"""Most steps of one CUDA graph."""
_WARM_UP = 3

_slope = torch.ops.aten.sigmoid_backward
"""Function of an error and of a sigmoid's output `a`. It returns error * a * (1 - a), which one
kernel computes."""


class _TorchNetworks:
    """Networks on a torch device. A single network is stored as vectors and matrices. The tensors
    of several networks have one more axis, the first one, whose index counts the networks."""

    def __init__(self, task: EpochWork, torch_device: torch.device) -> None:
        self.alone = task.problem.networks == 1
        self.count = task.problem.networks
        self.layers = [
            tuple(torch.from_numpy(np.array(array[0] if self.alone else array)).to(torch_device)
                  for array in layer) for layer in task.layers]

    def step(self, x: torch.Tensor, target: torch.Tensor) -> None:
        """Updates all networks by one sample."""
        outs: list[torch.Tensor] = []
        for index, (weight, bias) in enumerate(self.layers):
            if self.alone:
                z = torch.addmv(bias, weight, outs[-1] if index else x)
            elif index == 0:
                z = torch.addmv(bias.view(-1), weight.flatten(0, 1), x).view(self.count, -1)
            else:
                z = torch.baddbmm(bias[:, :, None], weight, outs[-1][:, :, None])[:, :, 0]
            outs.append(z.sigmoid_())
        error = _slope(target - outs[-1], outs[-1])
        errors = [error]
        for (weight, _), out in zip(self.layers[:0:-1], outs[-2::-1], strict=True):
            if self.alone:
                below = torch.mv(weight.t(), errors[0])
            else:
                below = torch.bmm(weight.transpose(1, 2), errors[0][:, :, None])[:, :, 0]
            errors.insert(0, _slope(below, out))
        for index, ((weight, bias), error) in enumerate(zip(self.layers, errors, strict=True)):
            if self.alone:
                weight.addr_(error, outs[index - 1] if index else x, alpha=RATE)
            elif index == 0:
                weight.flatten(0, 1).addr_(error.reshape(-1), x, alpha=RATE)
            else:
                weight.baddbmm_(error[:, :, None], outs[index - 1][:, None, :], alpha=RATE)
            bias.add_(error, alpha=RATE)

    def parameters(self) -> np.ndarray:
        """Returns the present parameters (networks, weight_count)."""
        layers = [(weight.cpu().numpy(), bias.cpu().numpy()) for weight, bias in self.layers]
        return flat([(weight[None], bias[None]) if self.alone else (weight, bias)
                     for weight, bias in layers])


def alternatives(name: str, task: EpochWork, device: Device) -> list[Alternative]:
    """Returns the way to run torch-eager or torch-graph. Raises AbsentError."""
    if device.runs_cuda_libraries:
        if not torch.cuda.is_available():
            raise AbsentError("this torch sees no CUDA device: install a build for CUDA")
    elif name == "torch-graph":
        raise AbsentError("compared on CUDA only, where it replays a CUDA graph")
    return [Alternative(name, partial(_contender, name, task, device))]


def _contender(name: str, task: EpochWork, device: Device) -> ReadyContender:
    """Returns the contender with the samples in its memory."""
    on_cuda = device.runs_cuda_libraries
    torch_device = torch.device("cuda", device.index) if on_cuda else torch.device("cpu")
    x, targets = (torch.from_numpy(array).to(torch_device) for array in (task.x, task.targets))

    @cache
    def stream_of(stream: Any) -> Any:
        """Returns a stream of gossamer as a torch stream, so that gossamer's events time torch's
        work."""
        handle = device.stream_handle(stream)
        return torch.cuda.ExternalStream(handle, torch_device)

    def begin(samples: int) -> TrainingRun:
        networks = _TorchNetworks(task, torch_device)
        run = (_graph if name == "torch-graph" else _eager)(networks, x[:samples],
                                                            targets[:samples])

        @torch.inference_mode()
        def work(stream: Any) -> None:
            FLAGS.use("fp32")
            if not on_cuda:
                run()
                return
            with torch.cuda.stream(stream_of(stream)):
                run()

        return TrainingRun(work, networks.parameters)

    steps = "" if name == "torch-eager" else f"CUDA graphs of up to {_MOST_STEPS} steps"
    return ready(name, device if on_cuda else find("host"), task, begin, "row",
                 ", ".join(filter(None, ("steps by hand, no autograd", steps))))


def _eager(networks: _TorchNetworks, x: torch.Tensor, targets: torch.Tensor) -> Callable[[], None]:
    """Returns a function that trains once on all samples and launches every kernel from Python."""
    samples = list(zip(x.unbind(), targets.unbind(), strict=True))

    def run() -> None:
        for sample in samples:
            networks.step(*sample)

    return run


@torch.inference_mode()
def _graph(networks: _TorchNetworks, x: torch.Tensor, targets: torch.Tensor) -> Callable[[], None]:
    """Returns a function that trains once on all samples by replays of a CUDA graph, which contains
    several steps. Each replay first gathers its samples by their indices. These indices are on the
    device, where the graph advances them to the next samples."""
    FLAGS.use("fp32")
    steps = next(count for count in range(min(_MOST_STEPS, len(x)), 0, -1) if len(x) % count == 0)
    first = torch.arange(steps, device=x.device)
    numbers = first.clone()
    graph_x, graph_targets = x[:steps].clone(), targets[:steps].clone()

    def run_steps() -> None:
        torch.index_select(x, 0, numbers, out=graph_x)
        torch.index_select(targets, 0, numbers, out=graph_targets)
        for step in range(steps):
            networks.step(graph_x[step], graph_targets[step])
        # the first sample follows the last
        numbers.add_(steps).remainder_(len(x))

    # the warm-up before the capture runs some steps; their changes are undone
    start = [(weight.clone(), bias.clone()) for weight, bias in networks.layers]
    replay = _captured(run_steps, x.device)
    numbers.copy_(first)
    for layer, start_layer in zip(networks.layers, start, strict=True):
        for tensor, start_tensor in zip(layer, start_layer, strict=True):
            tensor.copy_(start_tensor)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)

    def run() -> None:
        for _ in range(len(x) // steps):
            replay()

    return run


def _captured(work: Callable[[], None], torch_device: torch.device) -> Callable[[], None]:
    """Runs the work a few times, captures it as a CUDA graph and returns the function that replays
    it."""
    side_stream = torch.cuda.Stream(torch_device)
    side_stream.wait_stream(torch.cuda.current_stream(torch_device))
    with torch.cuda.stream(side_stream):
        for _ in range(_WARM_UP):
            work()
    torch.cuda.synchronize(torch_device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side_stream):
        work()
    return graph.replay
