"""gossamer makes thin networks fast.

>>> import gossamer
>>> plan = gossamer.compile("model.onnx")
>>> y = plan(x)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gossamer.errors import GossamerError, GossamerWarning
from gossamer.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from gossamer.detect.detector import Detector
    from gossamer.device.registry import devices
    from gossamer.model.input_format import InputFormat
    from gossamer.model.load import load
    from gossamer.plan.api import compile
    from gossamer.plan.batcher import Batcher
    from gossamer.plan.plan import Plan
    from gossamer.plan.plan_group import PlanGroup
    from gossamer.torch.api import explain, optimize
    from gossamer.train import MLP
    from gossamer.train.sweep import sweep
    from gossamer.train.sweep_cv import SweepCV

__version__ = PACKAGE_VERSION

__all__ = ["MLP", "Batcher", "Detector", "GossamerError", "GossamerWarning", "InputFormat", "Plan",
           "PlanGroup", "SweepCV", "compile", "devices", "explain", "load", "optimize", "sweep"]

_HOMES = {"Batcher": "gossamer.plan.batcher", "Detector": "gossamer.detect.detector",
          "InputFormat": "gossamer.model.input_format", "MLP": "gossamer.train",
          "Plan": "gossamer.plan.plan", "PlanGroup": "gossamer.plan.plan_group",
          "SweepCV": "gossamer.train.sweep_cv", "compile": "gossamer.plan.api",
          "devices": "gossamer.device.registry",
          "explain": "gossamer.torch.api", "load": "gossamer.model.load",
          "optimize": "gossamer.torch.api", "sweep": "gossamer.train.sweep"}


def __getattr__(name: str) -> Any:
    # Import names on first use: the command line imports this package before it handles Ctrl-C, so
    # this import must be short.
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
