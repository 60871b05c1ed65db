"""How much faster zero weights would make a network on a device, measured before training."""

from gossamer.advise.advice import WAYS, Advice, LayerGroup, Way, advise, check_speed_up
from gossamer.advise.cheapest import Choice, cheapest

__all__ = ["WAYS", "Advice", "Choice", "LayerGroup", "Way", "advise", "cheapest", "check_speed_up"]
