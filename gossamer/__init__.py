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
    from gossamer.train import MLP, train_many

__version__ = PACKAGE_VERSION

__all__ = ["MLP", "Batcher", "Detector", "GossamerError", "GossamerWarning", "InputFormat", "Plan",
           "PlanGroup", "compile", "devices", "explain", "load", "optimize", "train_many"]

_HOMES = {"Batcher": "gossamer.plan.batcher", "Detector": "gossamer.detect.detector",
          "InputFormat": "gossamer.model.input_format", "MLP": "gossamer.train",
          "Plan": "gossamer.plan.plan", "PlanGroup": "gossamer.plan.plan_group",
          "compile": "gossamer.plan.api", "devices": "gossamer.device.registry",
          "explain": "gossamer.torch.api", "load": "gossamer.model.load",
          "optimize": "gossamer.torch.api", "train_many": "gossamer.train"}


def __getattr__(name: str) -> Any:
    # names are imported when they are first used: the command line imports this package before it
    # handles Ctrl-C, so this import must be short
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
