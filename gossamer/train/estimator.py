"""What scikit-learn asks of an estimator beside fit and predict."""

from __future__ import annotations

import inspect
from typing import Any, Self

from gossamer.errors import InputError


class Estimator:
    """Parameters are what the constructor takes, each an attribute of its name."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given, by name."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Changes what the constructor was given. Raises InputError for an unknown name."""
        known = self._defaults()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}: expected one "
                                 f"of {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        known = self._defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items()
                   if repr(value) != repr(known[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        # before it is trained, y alone tells: scikit-learn looks at it too
        labels = hasattr(self, "classes_") or not hasattr(self, "_state")
        return Tags("classifier" if labels else None, TargetTags(required=True),
                    classifier_tags=ClassifierTags() if labels else None)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """The constructor's parameters."""
        return {name: parameter.default
                for name, parameter in inspect.signature(cls).parameters.items()}
