"""Makes modules of torchvision and timm by name, with random weights."""

from __future__ import annotations

import copy
import importlib
import random
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

from gossamer.bench.work import AbsentError
from gossamer.errors import InputError, first_line

TIMM = "timm/"
"""Prefix of the names of timm's networks. The names of torchvision's networks have no prefix."""
TORCHVISION_MODULES = ("resnet18", "resnet50", "mobilenet_v2", "shufflenet_v2_x1_0",
                       "efficientnet_b0")
TIMM_MODULES = tuple(f"{TIMM}{name}" for name in (
    "convnext_atto", "edgenext_xx_small", "efficientvit_b0", "fbnetc_100", "ghostnet_100",
    "hardcorenas_a", "lcnet_050", "mixnet_s", "mnasnet_small", "mobilenetv3_small_100",
    "mobilenetv4_conv_small", "mobileone_s0", "regnetx_002", "repvit_m0_9", "tinynet_e"))
MOST_PARAMETERS = 20_000_000
"""Most parameters of a network that is drawn."""
_TORCHVISION = "torchvision.models"
_PICTURES = 8
_SIZE = 224
_LEAST_SCALE = 1e-3
"""Equal scales of channels below this number become 1. Layer scales begin at 1e-6 to 1e-5."""


def names_of(patterns: str | None) -> list[str]:
    """Returns the names of the networks that match one of several patterns. Raises InputError for a
    pattern that matches no name, and AbsentError where the library of a pattern is not installed.

    patterns: patterns with commas between them, such as "resnet18,timm/mobilenetv4*"; None for
    twenty small networks.
    """
    if patterns is None:
        return [*TORCHVISION_MODULES, *TIMM_MODULES]
    found: list[str] = []
    for pattern in patterns.split(","):
        is_timm = pattern.startswith(TIMM)
        library = _library("timm" if is_timm else _TORCHVISION)
        known = library.list_models()
        names = [name for name in known if fnmatchcase(name, pattern.removeprefix(TIMM))]
        if not names:
            raise InputError(f"--models {pattern}: no network of "
                             f"{'timm' if is_timm else 'torchvision'} has such a name")
        found += [f"{TIMM}{name}" if is_timm else name for name in names]
    return list(dict.fromkeys(found))


def shuffled(seed: int) -> list[str]:
    """Returns the names of all networks of timm and torchvision in an order drawn by the seed.
    Raises AbsentError where one of the libraries is not installed."""
    torchvision = _library(_TORCHVISION)
    names = [f"{TIMM}{name}" for name in _library("timm").list_models()]
    # networks of classification alone, without those of detection, segmentation and video
    names += torchvision.list_models(torchvision)
    random.Random(seed).shuffle(names)
    return names


def drawn(seed: int) -> Iterator[str]:
    """Yields the networks of shuffled() that have at most MOST_PARAMETERS parameters. Networks that
    cannot be made are left out."""
    for name in shuffled(seed):
        try:
            if parameter_count(name) <= MOST_PARAMETERS:
                yield name
        except Exception:  # a constructor may raise any exception
            continue


def parameter_count(name: str) -> int:
    """Returns the number of parameters of a network, which is made without memory for them where
    its constructor allows that."""
    import torch

    try:
        with torch.device("meta"):
            module = created(name)
    except Exception:
        # some constructors compute numbers
        module = created(name)
    return sum(parameter.numel() for parameter in module.parameters())


def made(name: str, place: Any, dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns a network in evaluation mode, and the shape of a picture. The weights are random, and
    the batch norms have the statistics of random pictures.

    place: torch.device of the network.
    dtype: dtype of the weights; float16 weights are in channels_last.
    Raises AbsentError where the network's library is not installed.
    """
    import torch

    torch.manual_seed(0)
    module = created(name)
    size = tuple(getattr(module, "default_cfg", {}).get("input_size", (3, _SIZE, _SIZE)))
    module = with_statistics(module.to(place), torch.randn(_PICTURES, *size).to(place))
    module = module.to(dtype)
    if dtype == torch.float16:
        for weight in module.parameters():
            if weight.dim() == 4:  # Module.to refuses channels_last where weights have five dims
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return module, size


def with_statistics(module: Any, x: Any) -> Any:
    """Returns a network in evaluation mode whose batch norms have the statistics of the pictures
    `x`, so that activations neither vanish nor explode. In some networks the scales of the channels
    at the end of a residual branch are all equal and nearly 0 before training. With these scales
    the results of the branches would be zeros, or would vanish in the sums. Equal scales below
    _LEAST_SCALE therefore become 1."""
    import torch

    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.momentum = None
            layer.reset_running_stats()
    for name, scale in module.named_parameters():
        is_bias = name.endswith("bias")
        if scale.numel() > 1 and scale.numel() == max(scale.shape) and not is_bias and (
                scale.min() == scale.max() and abs(scale.max()) < _LEAST_SCALE):
            torch.nn.init.ones_(scale)
    module.train()
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.eval()
    with torch.no_grad():
        module(x)
    return module.eval()


def multiplications(module: Any, x: Any) -> int:
    """Returns the number of multiplications in the convolutions and matrix products of one call."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    # its hooks fail for views of parameters that require gradients, which no_grad leaves out
    module = copy.deepcopy(module).requires_grad_(False)
    with counter, torch.no_grad():
        module(x)
    return int(counter.get_total_flops()) // 2


def check_torch() -> None:
    """Raises AbsentError where torch is not installed."""
    _library("torch")


def created(name: str) -> Any:
    """Returns a network with random weights. Raises AbsentError where its library is missing."""
    if name.startswith(TIMM):
        return _library("timm").create_model(name.removeprefix(TIMM))
    return _library(_TORCHVISION).get_model(name, weights=None)


def _library(name: str) -> Any:
    root = name.partition(".")[0]
    if find_spec(root) is None:
        raise AbsentError(f"{root} is not installed: pip install {root}")
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        # such as a torchvision that was built for another version of torch
        raise AbsentError(f"{root} cannot be imported: {first_line(error)}") from error
