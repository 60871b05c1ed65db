"""The methods that scikit-learn expects of an estimator besides fit and predict."""

from __future__ import annotations

import inspect
from typing import Any, Self

from gossamer.errors import InputError


class Estimator:
    """An estimator whose constructor stores each of its parameters in an attribute of that name."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters of the constructor, by name; `deep` changes nothing."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Changes parameters of the constructor. Raises InputError for an unknown name."""
        defaults = self._defaults()
        for name, value in params.items():
            if name not in defaults:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}: expected one "
                                 f"of {', '.join(defaults)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = self._defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items()
                   if repr(value) != repr(defaults[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        # without a task it may become either by training; scikit-learn then decides by y as well
        is_trained = hasattr(self, "_state")
        is_regressor = (is_trained and not hasattr(self, "classes_")) or (
            getattr(self, "task", None) == "regression")
        return Tags("regressor" if is_regressor else "classifier", TargetTags(required=True),
                    classifier_tags=None if is_regressor else ClassifierTags(),
                    regressor_tags=RegressorTags() if is_regressor else None)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Returns the default value of each parameter of the constructor."""
        return {name: parameter.default
                for name, parameter in inspect.signature(cls).parameters.items()}
