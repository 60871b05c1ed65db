"""How much faster zeros would make a network on a device, measured before it is trained."""

from gossamer.advise.advice import WAYS, Advice, LayerGroup, Way, advise, check_speed_up
from gossamer.advise.cheapest import Choice, cheapest

__all__ = ["WAYS", "Advice", "Choice", "LayerGroup", "Way", "advise", "cheapest", "check_speed_up"]
