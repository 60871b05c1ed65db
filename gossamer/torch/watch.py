"""Finds changes of a module's weights by the version counters that torch keeps of tensors."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from gossamer.errors import quoted

CALLS = 100
"""Number of calls after which the weights are checked for changes again."""


class Watch:
    """The weights of a module as they were when it was optimised.

    The module is not kept alive. A tensor made in torch.inference_mode() has no version counter, so
    that a change is noticed only where another tensor takes its place.
    """

    def __init__(self, module: nn.Module) -> None:
        self._weights: list[tuple[Any, str, str, Any, int | None]] = []
        for path, part in module.named_modules():
            for name, tensor in (*part._parameters.items(), *part._buffers.items()):
                if tensor is not None and name != "num_batches_tracked":
                    self._weights.append((weakref.ref(part), f"{path}.{name}".lstrip("."), name,
                                          weakref.ref(tensor), _version(tensor)))

    def change(self) -> str:
        """Returns the first change, in words for a message; "" where no weight has changed."""
        for owner, path, name, tensor, version in self._weights:
            part = owner()
            if part is None:
                continue
            now = part._parameters.get(name)
            if now is None:
                now = part._buffers.get(name)
            if now is not tensor():
                return f"another tensor has taken the place of {quoted(path)}"
            if version is not None and now._version != version:
                return f"{quoted(path)} was changed in place"
        return ""


def _version(tensor: Any) -> int | None:
    return None if tensor.is_inference() else int(tensor._version)
