"""gossamer makes thin networks fast.

>>> import gossamer
>>> plan = gossamer.compile("model.onnx")
>>> y = plan(x)
"""

from gossamer.device import devices
from gossamer.errors import GossamerError, GossamerWarning
from gossamer.model import load
from gossamer.plan.plan import Plan, compile

__version__ = "0.1.0"

__all__ = ["GossamerError", "GossamerWarning", "Plan", "compile", "devices", "load"]
