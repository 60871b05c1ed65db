"""Box, an object that a network found on a photo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Box:
    """An object on a photo.

    Attributes
    ----------
    name : str
        Name of the object's class.
    class_index : int
        Number of the object's class, from 0.
    score : float
        How sure the network is, from 0 to 1.
    left, top, right, bottom : float
        Edges of the box, in pixels from the photo's upper left corner. They may lie beyond the
        photo's edges.
    """

    name: str
    class_index: int
    score: float
    left: float
    top: float
    right: float
    bottom: float

    def as_json(self) -> dict[str, Any]:
        """Return the box in types that JSON has.

        Returns
        -------
        dict
            Number of the class ("class"), "name", "score", and "box" with left, top, right and
            bottom.
        """
        return {"class": self.class_index, "name": self.name, "score": self.score,
                "box": [self.left, self.top, self.right, self.bottom]}
