"""Measurement of the speed-up from zero weights, before training."""

from gossamer.advise.advice import (
    WAYS,
    Advice,
    Choice,
    LayerGroup,
    Way,
    advise,
    chart,
    cheapest,
    check_speed_up,
)

__all__ = [
    "WAYS", "Advice", "Choice", "LayerGroup", "Way", "advise", "chart", "cheapest",
    "check_speed_up"]
