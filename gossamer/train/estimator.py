"""The methods that scikit-learn expects of an estimator besides fit and predict."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any, Self, TypeVar, cast

from gossamer.errors import InputError

_Class = TypeVar("_Class", bound=Exception)

_OF_SCIKIT_LEARN = {
    "hidden_layer_sizes": "hidden", "random_state": "seed", "max_iter": "epochs",
    "learning_rate_init": "learning_rate", "alpha": "weight_decay", "solver": "optimiser",
    "batch_size": "batch", "n_iter_no_change": "patience", "out_activation": "output",
    "early_stopping": "validation=(x, y) of fit()", "verbose": "on_epoch of fit()",
    "validation_fraction": "validation=(x, y) of fit()", "warm_start": "partial_fit()"}
"""Parameters of scikit-learn's networks, with gossamer's names for the same settings."""


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
                raise self._unknown(name)
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = self._defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items()
                   if repr(value) != repr(defaults[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def _learns_numbers(self) -> bool:
        """Whether the estimator was trained on numbers, or is to be trained on numbers."""
        is_trained = hasattr(self, "_state")
        return (is_trained and not hasattr(self, "classes_")) or (
            getattr(self, "task", None) == "regression")

    def __sklearn_is_fitted__(self) -> bool:
        """Returns whether the estimator is trained."""
        return hasattr(self, "_state")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        # an untrained estimator without a task counts as a classifier here, though training on
        # numbers makes it a regressor; scikit-learn looks at y too before it takes y as labels
        is_regressor = self._learns_numbers
        return Tags("regressor" if is_regressor else "classifier",
                    TargetTags(required=True, multi_output=is_regressor),
                    classifier_tags=None if is_regressor else ClassifierTags(),
                    regressor_tags=RegressorTags() if is_regressor else None,
                    input_tags=InputTags(sparse=True))

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Returns the default value of each parameter of the constructor."""
        return {name: parameter.default
                for name, parameter in inspect.signature(cls).parameters.items()
                if parameter.kind is not parameter.VAR_KEYWORD}

    @classmethod
    def _unknown(cls, name: str) -> InputError:
        """Returns the error for a parameter that the estimator does not have."""
        own = _OF_SCIKIT_LEARN.get(name)
        return InputError(f"{cls.__name__} has no parameter {name!r}: " + (
            f"expected one of {', '.join(cls._defaults())}" if own is None else
            f"what scikit-learn calls so is {own} here"))


class classifiers_only:
    """A decorator of methods that only classifiers have. Where the estimator learns numbers, the
    attribute raises an InputError that is also an AttributeError, so that scikit-learn takes the
    method as absent."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__doc__ = method.__doc__
        self._method = method

    def __get__(self, estimator: Estimator | None, owner: type) -> Any:
        if estimator is None:
            return self._method
        if estimator._learns_numbers:
            raise _NotOfNumbers(f"{self._method.__name__}: this network was trained on numbers, or "
                                "is to be; expected one that is trained on labels")
        return MethodType(self._method, estimator)


class _NotOfNumbers(InputError, AttributeError):
    """Raised where a network that learns numbers is asked for a method of classifiers."""


def shared_with_scikit_learn(own: type[_Class]) -> type[_Class]:
    """Returns the given class of errors or warnings. Where a program has imported scikit-learn,
    returns a subclass that also derives from scikit-learn's class of the same name, so that code
    that catches or filters scikit-learn's class gets gossamer's too."""
    theirs = getattr(sys.modules.get("sklearn.exceptions"), own.__name__, None)
    both: type[_Class] = own if theirs is None else _subclass(cast(Hashable, own), theirs)
    return both


@functools.cache
def _subclass(own: Any, theirs: Any) -> Any:
    def reduced(error: Exception) -> tuple[type, tuple[Any, ...]]:
        return own, error.args  # pickle looks classes up in modules, where this subclass is not

    return type(own.__name__, (own, theirs), {
        "__module__": own.__module__, "__doc__": own.__doc__, "__reduce__": reduced})
