"""Turns weights that modules compute, such as pruned and normalised weights, into constants."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_HOOKS = (prune.BasePruningMethod, WeightNorm, SpectralNorm)
"""The hooks by which torch.nn.utils computes a weight before each call of forward."""


def folded(module: nn.Module) -> nn.Module:
    """Returns the module itself where it computes no weights. Otherwise returns a copy in which the
    results of torch.nn.utils.prune, weight_norm, spectral_norm and parametrisations are plain
    weights."""
    if not any(_computes_weights(part) for part in module.modules()):
        return module
    with torch.no_grad():
        _recompute(module)
        result = copy.deepcopy(module)
        for part in list(result.modules()):
            if parametrize.is_parametrized(part):
                _remove_parametrizations(part)
            for key, hook in list(part._forward_pre_hooks.items()):
                if isinstance(hook, _HOOKS):
                    hook.remove(part)
                    del part._forward_pre_hooks[key]
    return result


def _remove_parametrizations(part: nn.Module) -> None:
    """Replaces the parametrisations of a copied module by the weights that they compute. torch's
    own function would also change the class, which the copy shares with the original module."""
    weights = {name: getattr(part, name).detach().clone() for name in part.parametrizations}
    del part._modules["parametrizations"]
    part.__class__ = type(part).__bases__[0]
    for name, weight in weights.items():
        part.register_parameter(name, nn.Parameter(weight, requires_grad=False))


def without_bfloat16(module: nn.Module) -> nn.Module:
    """Returns the module, or a copy in float32 where the module has weights in bfloat16: networks
    are computed in float32 and float16."""
    if all(tensor.dtype != torch.bfloat16 for tensor in module.parameters()):
        return module
    return copy.deepcopy(module).float()


def _computes_weights(part: nn.Module) -> bool:
    return parametrize.is_parametrized(part) or any(
        isinstance(hook, _HOOKS) for hook in part._forward_pre_hooks.values())


def _recompute(module: nn.Module) -> None:
    """Makes the hooks compute their weights while torch records no gradients, because deepcopy
    refuses tensors that were computed with gradients."""
    inputs: Any = ()
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, _HOOKS):
                hook(part, inputs)
