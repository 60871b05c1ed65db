"""Methods of a trained MLP: predictions, scores, and the network as a graph or an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.errors import ArrayError, NotFittedError
from gossamer.model.metadata import Column
from gossamer.train.data.matrix import check_feature_names, matrix
from gossamer.train.data.preparation import Preparation
from gossamer.train.data.samples import Samples, check_kind, samples
from gossamer.train.data.scaling import Scaling
from gossamer.train.data.weights import checked_weights
from gossamer.train.estimator import Estimator, classifiers_only, shared_with_scikit_learn
from gossamer.train.loop.train_loop import TrainLoop
from gossamer.train.loop.train_state import TrainState
from gossamer.train.network import TrainedNetwork, determination

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


class Predictor(Estimator):
    """An estimator that has a trained network in its attributes after training."""

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
            outputs, float32 of shape (n, outputs), or (n,) where there is one output.

        Raises
        ------
        InputError
            If the network is not trained yet, or x is wrong: a data frame must have the columns
            of the data frame that was trained on, in the same order.
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
            Float32 of shape (n, classes). With the loss "cross_entropy" these are the softmax
            outputs. With another loss, negative outputs are replaced by 0, and the outputs are
            divided by their sum; where no output is above 0, all classes have the same probability.

        Raises
        ------
        InputError
            If the network is not trained yet or is for regression, or x is wrong.
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
            If the network is not trained yet or is for regression, or x is wrong.
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
            Right labels, or targets.
        sample_weight : array_like of float, shape (n,), optional
            Weight of each sample, 0 or more.

        Returns
        -------
        float
            The share of labels that predict() gets right; for regression the coefficient of
            determination R^2, averaged over the outputs.

        Raises
        ------
        InputError
            If the network is not trained yet, or x or y are wrong.
        """
        network = self._network()
        if not hasattr(self, "classes_"):
            data = samples(self._inputs(x), y, network.sizes, task=self.task,
                           sample_weight=sample_weight)
            return determination(network.outputs(data.x), data.targets, data.weights)
        predictions, labels = self.predict(x), np.asarray(y).reshape(-1)
        if len(labels) != len(predictions):
            raise ArrayError(f"x has {len(predictions)} rows, y {len(labels)} labels: expected "
                             "as many")
        if len(predictions) == 0:
            raise ArrayError("x has no rows: expected at least one sample")
        check_kind(labels, self.classes_, "")
        weights = None if sample_weight is None else checked_weights(sample_weight, len(labels))
        return float(np.average(predictions == labels, weights=weights))

    def to_graph(self) -> Graph:
        """Return the network as a graph, which gossamer.compile() takes.

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
            Steps that were applied to the samples before fit(). The file begins with these steps,
            and takes samples that are not prepared.

        Raises
        ------
        InputError
            If the network is not trained yet, prepared samples do not have its number of inputs,
            or the file cannot be written.
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
        """Return a preparation with the columns of the data frame that was trained on.

        A preparation that has columns keeps its own; a preparation that pads gets none.
        """
        preparation = preparation or Preparation()
        names = () if preparation.columns or preparation.pad else getattr(
            self, "feature_names_in_", ())
        return replace(preparation, columns=preparation.columns or tuple(map(Column, names)))

    def _outputs(self, x: Any) -> np.ndarray:
        return self._network().outputs(self._inputs(x))

    def _inputs(self, x: Any) -> np.ndarray:
        """Return x as float32, with the columns that the network was trained on."""
        self._network()
        check_feature_names(x, getattr(self, "feature_names_in_", None), "x")
        inputs = matrix(x, None, "x")
        self._check_width(inputs)
        return inputs

    def _check_width(self, inputs: np.ndarray) -> None:
        if inputs.shape[1] != self.n_features_in_:
            raise ArrayError(f"X has {inputs.shape[1]} features, but {type(self).__name__} is "
                             f"expecting {self.n_features_in_} features as input")


def become(mlp: Predictor, state: TrainState, data: Samples, training: TrainLoop | None) -> None:
    """Set the attributes of an MLP from a training state.

    Parameters
    ----------
    mlp : Predictor
        The network that changes.
    state : TrainState
        The network's training state.
    data : Samples
        The samples that the network was trained on.
    training : TrainLoop or None
        Loop that trained the network; None where the state comes from a checkpoint alone.
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
    if training is not None:
        mlp.device_, mlp.algorithm_ = training.device.name, training.algorithm
    if data.classes is not None:
        mlp.classes_ = data.classes
    elif hasattr(mlp, "classes_"):
        del mlp.classes_
