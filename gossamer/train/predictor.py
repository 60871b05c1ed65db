"""The methods of a trained MLP, and scikit-learn's interface of estimators."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

from gossamer.errors import ArrayError, InputError, NotFittedError, one_of
from gossamer.model.metadata import Column
from gossamer.train.data.dataset import Preparation
from gossamer.train.data.matrix import check_feature_names, checked_weights, matrix
from gossamer.train.data.samples import Samples, Scaling, check_kind, samples
from gossamer.train.loop.train_state import TrainState
from gossamer.train.network import TrainedNetwork, determination

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


_Class = TypeVar("_Class", bound=Exception)

_OF_SCIKIT_LEARN = {
    "hidden_layer_sizes": "hidden", "random_state": "seed", "max_iter": "epochs",
    "learning_rate_init": "learning_rate", "alpha": "weight_decay", "solver": "optimiser",
    "batch_size": "batch", "n_iter_no_change": "patience", "out_activation": "output",
    "early_stopping": "validation=(x, y) of fit()", "verbose": "on_epoch of fit()",
    "validation_fraction": "validation=(x, y) of fit()", "warm_start": "partial_fit()"}
"""Parameters of scikit-learn's networks, each with its equivalent in gossamer."""


class Estimator:
    """An estimator that stores its constructor's parameters as attributes."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor, by name.

        deep: ignored, because no parameter is an estimator; scikit-learn passes it.
        """
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters of the constructor.

        Raises InputError for an unknown name.
        """
        defaults = self._defaults()
        for name, value in params.items():
            if name not in defaults:
                raise self.unknown(name)
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Return the constructor call with all parameters that are not defaults."""
        defaults = self._defaults()
        changed = [f"{name}={value!r}" for name, value in self.get_params(deep=False).items()
                   if repr(value) != repr(defaults[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def _learns_numbers(self) -> bool:
        """Whether the estimator was trained for regression, or has this task."""
        is_trained = hasattr(self, "_state")
        return (is_trained and not hasattr(self, "classes_")) or (
            getattr(self, "task", None) == "regression")

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether the estimator is trained."""
        return hasattr(self, "_state")

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of the estimator."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        # an untrained estimator without a task is reported as a classifier: scikit-learn treats the
        # y of a classifier as labels only after it has inspected y
        is_regressor = self._learns_numbers
        return Tags("regressor" if is_regressor else "classifier",
                    TargetTags(required=True, multi_output=is_regressor),
                    classifier_tags=None if is_regressor else ClassifierTags(),
                    regressor_tags=RegressorTags() if is_regressor else None,
                    input_tags=InputTags(sparse=True))

    @classmethod
    @functools.cache
    def _defaults(cls) -> dict[str, Any]:
        """Return the default value of each parameter of the constructor."""
        return {name: parameter.default
                for name, parameter in inspect.signature(cls).parameters.items()
                if parameter.kind is not parameter.VAR_KEYWORD}

    @classmethod
    def unknown(cls, name: str) -> InputError:
        """Return the error for an unknown parameter."""
        own = _OF_SCIKIT_LEARN.get(name)
        return InputError(f"{cls.__name__} has no parameter {name!r}: " + (
            one_of(name, cls._defaults()) if own is None else
            f"scikit-learn's parameter of this name corresponds to {own} here"))


class classifiers_only:
    """Decorator for methods that only classifiers have.

    On an estimator for regression, accessing the method raises an InputError that is also an
    AttributeError, so that scikit-learn treats the method as absent.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__doc__ = method.__doc__
        self._method = method

    def __get__(self, estimator: Estimator | None, owner: type) -> Any:
        """Return the method. Raises AttributeError if the estimator is for regression."""
        if estimator is None:
            return self._method
        if estimator._learns_numbers:
            raise _NotOfNumbers(f"{self._method.__name__}: only networks for classification "
                                "have this method, but this network was made for regression")
        return MethodType(self._method, estimator)


class _NotOfNumbers(InputError, AttributeError):
    """A classifier's method was accessed on a network for regression."""


def shared_with_scikit_learn(own: type[_Class]) -> type[_Class]:
    """Return an error or warning class that scikit-learn's handlers also catch.

    If scikit-learn has been imported, the result is a subclass of `own` and of scikit-learn's class
    of the same name. Code that catches or filters scikit-learn's class then also catches or filters
    gossamer's. If scikit-learn has not been imported, the result is `own`.
    """
    theirs = getattr(sys.modules.get("sklearn.exceptions"), own.__name__, None)
    both: type[_Class] = own if theirs is None else _subclass(cast(Hashable, own), theirs)
    return both


@functools.cache
def _subclass(own: Any, theirs: Any) -> Any:
    def reduced(error: Exception) -> tuple[type, tuple[Any, ...]]:
        # pickle looks a class up in its module, where it finds `own` but not this subclass
        return own, error.args

    return type(own.__name__, (own, theirs), {
        "__module__": own.__module__, "__doc__": own.__doc__, "__reduce__": reduced})


class Predictor(Estimator):
    """An estimator that stores its trained network in attributes."""

    coefs_: list[np.ndarray]
    intercepts_: list[np.ndarray]
    classes_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray
    loss_curve_: list[float]
    n_iter_: int
    kept_epoch_: int
    device_: str
    algorithm_: str
    task: str | None
    _state: TrainState
    _scaling: Scaling

    def predict(self, x: Any) -> np.ndarray:
        """Predict labels or, for regression, numbers.

        To predict on a device, compile the graph that to_graph() returns.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.

        Returns
        -------
        numpy.ndarray
            The label with the largest output for each sample, of shape (n,); for regression the
            outputs, float32 of shape (n, outputs), or (n,) if there is one output.

        Raises
        ------
        InputError
            If the network is not trained yet, or if x is wrong: a data frame must have the columns
            of the data frame that was trained on, in their order.
        """
        y = self._outputs(x)
        if hasattr(self, "classes_"):
            return self.classes_[y.argmax(axis=1)]
        return y[:, 0] if y.shape[1] == 1 else y

    @classifiers_only
    def predict_proba(self, x: Any) -> np.ndarray:
        """Predict the probability of each class.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.

        Returns
        -------
        numpy.ndarray
            Float32 of shape (n, classes). With the loss "cross_entropy" these are the outputs of
            the softmax. With another loss, negative outputs become 0, and the outputs are divided
            by their sum; if no output is above 0, all classes have the same probability.

        Raises
        ------
        InputError
            If the network is not trained yet, if it is for regression, or if x is wrong.
        """
        y = self._outputs(x)
        if self._state.settings.loss == "cross_entropy":
            return y
        y = np.maximum(y, 0)
        total = y.sum(axis=1, keepdims=True)
        return np.where(total > 0, y / np.where(total > 0, total, 1), np.float32(1 / y.shape[1]))

    @classifiers_only
    def predict_log_proba(self, x: Any) -> np.ndarray:
        """Predict the logarithm of the probability of each class.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.

        Returns
        -------
        numpy.ndarray
            Float32 of shape (n, classes), the logarithm of predict_proba(); -inf where the
            probability is 0.

        Raises
        ------
        InputError
            If the network is not trained yet, if it is for regression, or if x is wrong.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(x))

    def score(self, x: Any, y: Any, sample_weight: Any = None) -> float:
        """Evaluate the predictions for samples.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.
        y : array_like, shape (n,) or (n, outputs)
            True labels, or targets.
        sample_weight : array_like of float, shape (n,), optional
            Weight of each sample, 0 or more.

        Returns
        -------
        float
            The accuracy of predict(); for regression the coefficient of determination R^2,
            averaged over the outputs.

        Raises
        ------
        InputError
            If the network is not trained yet, or if x or y is wrong.
        """
        network = self._network()
        if not hasattr(self, "classes_"):
            data = samples(self._inputs(x), y, network.sizes, task=self.task,
                           sample_weight=sample_weight)
            return determination(network.outputs(data.x), data.targets, data.weights)
        predictions, labels = self.predict(x), np.asarray(y).reshape(-1)
        if len(labels) != len(predictions):
            raise ArrayError(f"x has {len(predictions)} rows, but y has {len(labels)} labels; "
                             "expected a label for each row")
        if len(predictions) == 0:
            raise ArrayError("x has no rows: expected at least one sample")
        check_kind(labels, self.classes_, "")
        weights = None if sample_weight is None else checked_weights(sample_weight, len(labels))
        return float(np.average(predictions == labels, weights=weights))

    def to_graph(self) -> Graph:
        """Return the network as a graph for gossamer.compile().

        Returns
        -------
        Graph
            The network from the input x (N, inputs) to the output y (N, outputs), both float32.

        Raises
        ------
        InputError
            If the network is not trained yet.
        """
        from gossamer.train import export

        network = self._network()
        return export.graph(network.layers, network.activations, export.model_metadata(
            network.activations, getattr(self, "classes_", None), self._with_columns(None)))

    def save_onnx(self, path: str | Path, preparation: Preparation | None = None) -> None:
        """Write the network to an ONNX file.

        The file has the input x (N, inputs) and the output y (N, outputs), both float32. The
        labels are in its metadata, as JSON under the key `classes`, and the names of a data
        frame's columns under `columns`.

        Parameters
        ----------
        path : str or Path
            Name of the file, which ends in .onnx.
        preparation : Preparation, optional
            Steps that were applied to the samples before fit(). The network in the file begins with
            these steps, so that it accepts unprepared samples.

        Raises
        ------
        InputError
            If the network is not trained yet, if prepared samples do not have the network's number
            of inputs, or if the file cannot be written.
        """
        from gossamer.train import export

        network = self._network()
        metadata = export.model_metadata(network.activations, getattr(self, "classes_", None),
                                         self._with_columns(preparation))
        export.write(Path(path), export.graph(network.layers, network.activations, metadata,
                                              preparation))

    def _network(self) -> TrainedNetwork:
        """Return the network with the parameters in coefs_ and intercepts_."""
        if not hasattr(self, "_state"):
            raise shared_with_scikit_learn(NotFittedError)(
                f"this {type(self).__name__} is not trained yet: call fit first")
        return TrainedNetwork.with_layers(self._state.settings, [
            (weight.T, bias) for weight, bias in zip(self.coefs_, self.intercepts_, strict=True)])

    def _with_columns(self, preparation: Preparation | None) -> Preparation:
        """Return a preparation with the columns of the training data frame.

        Columns that the preparation already has are kept. A preparation that pads gets no columns,
        because its samples are pictures.
        """
        preparation = preparation or Preparation()
        names = () if preparation.columns or preparation.pad else getattr(
            self, "feature_names_in_", ())
        return replace(preparation, columns=preparation.columns or tuple(map(Column, names)))

    def _outputs(self, x: Any) -> np.ndarray:
        return self._network().outputs(self._inputs(x))

    def _inputs(self, x: Any) -> np.ndarray:
        """Return x as float32. Raises InputError if it has other columns than the network."""
        self._network()
        check_feature_names(x, getattr(self, "feature_names_in_", None), "x")
        inputs = matrix(x, None, "x")
        self._check_width(inputs)
        return inputs

    def _check_width(self, inputs: np.ndarray) -> None:
        if inputs.shape[1] != self.n_features_in_:
            raise ArrayError(f"X has {inputs.shape[1]} features, but {type(self).__name__} is "
                             f"expecting {self.n_features_in_} features as input")


def become(mlp: Predictor, state: TrainState, data: Samples) -> None:
    """Set the attributes of an MLP from a training state.

    Parameters
    ----------
    mlp : Predictor
        The MLP to update.
    state : TrainState
        The network's training state.
    data : Samples
        The samples that the network was trained on.
    """
    mlp._state, mlp._scaling = state, data.scaling
    layers = data.scaling.folded(TrainedNetwork.kept_of(state).layers)
    mlp.coefs_ = [weight.T.copy() for weight, _ in layers]
    mlp.intercepts_ = [bias.copy() for _, bias in layers]
    mlp.loss_curve_, mlp.n_iter_ = list(state.curve), state.epochs_done
    mlp.kept_epoch_ = state.kept_epoch
    mlp.n_features_in_ = state.settings.sizes[0]
    if data.names is not None:
        mlp.feature_names_in_ = data.names
    elif hasattr(mlp, "feature_names_in_"):
        del mlp.feature_names_in_
    if state.trained_by is not None:
        mlp.device_, mlp.algorithm_ = state.trained_by
    if data.classes is not None:
        mlp.classes_ = data.classes
    elif hasattr(mlp, "classes_"):
        del mlp.classes_
