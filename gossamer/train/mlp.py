"""The class MLP: a fully connected network that is trained on one device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError, InputError
from gossamer.train.data.preparation import Preparation
from gossamer.train.data.samples import Samples, check_kind, matrix, samples, validation_samples
from gossamer.train.estimator import Estimator
from gossamer.train.loop import memory
from gossamer.train.loop.checkpoint import Checkpointer, Throttle
from gossamer.train.loop.progress import OnEpoch, Progress
from gossamer.train.loop.schedule import Schedule
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainLoop, TrainState
from gossamer.train.network import TrainedNetwork, determination

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


class MLP(Estimator):
    """A fully connected network, trained by back-propagation on one device.

    The class follows the conventions of scikit-learn. From the same settings and data every
    device comes to the same parameters, to rounding.

    Parameters
    ----------
    sizes : sequence of int
        Number of units of each layer, inputs first and outputs last, such as (784, 32, 10).
    activation : {"sigmoid", "tanh", "relu"}
        Activation of the hidden layers.
    loss : {"squared_error", "cross_entropy"}
        With "squared_error" the outputs have the activation of the hidden layers, or none where
        that is "relu"; with "cross_entropy" they are a softmax.
    learning_rate : float
        Factor of each change of a parameter, above 0.
    schedule : str, tuple or callable
        Factor of the learning rate in each epoch: "constant" (1), "inverse"
        (1 / (1 + epochs done)), ("step", every, factor) (the factor once more after every so
        many epochs), or a function of the number of epochs done (int) that returns a float.
    momentum : float
        Share of the last change that the next one keeps, at least 0 and below 1.
    weight_decay : float
        Share of each weight that is added to its gradient, at least 0; biases do not decay.
    batch : int
        Number of samples of an update; 1 is online training.
    epochs : int
        Largest number of epochs; an epoch is one run over all samples.
    target_error : float, optional
        Mean loss of an epoch at which training stops early.
    shuffle : bool
        True to train each epoch in a random order of its own, False in the order of the rows.
    initial : {"uniform", "glorot"}
        Distribution of the initial parameters: "uniform" between -0.05 and 0.05, or the weights
        as "glorot" and the biases 0.
    seed : int or None
        Seed of the initial parameters and of the orders; None takes another one each time.
    device : str, Device or None
        Device that trains: "cuda:0", "opencl:0", "host", or None for the best device.
    effort : {"quick", "normal", "max"} or None
        Effort at which all algorithms are measured, to take the fastest. That takes seconds to
        minutes at the first network of these sizes on this device with data about as dense.
        With None nothing is measured, and the algorithm that is expected to be the fastest is
        taken (see Notes).
    algorithm : str or None
        Name of the algorithm to take.

    Attributes
    ----------
    coefs_ : list of numpy.ndarray
        Weights of each layer, float32 of shape (units of the layer before, units).
    intercepts_ : list of numpy.ndarray
        Biases of each layer, float32 of shape (units,).
    loss_curve_ : list of float
        Mean loss of each epoch, each sample's taken before its update.
    n_iter_ : int
        Number of finished epochs.
    classes_ : numpy.ndarray
        Labels in the order of the outputs; missing after a regression.
    n_features_in_ : int
        Number of inputs.
    validation_scores_ : list of float
        Score on the validation data after each epoch of the last fit: the accuracy, or R^2.
    device_ : str
        Name of the device that trained.
    algorithm_ : str
        Name of the algorithm that trained.

    Notes
    -----
    Without an effort the algorithm is "blocked" where one work-group can train a network with it
    (samples one by one without momentum, one hidden layer of 64 units at most); else "persistent"
    where a network fits the shared memory of one work-group; else "blocked" with several
    launches; else "per_step"; and on the host "numpy".

    Source: training by back-propagation on a GPU with everything resident (2013): squared error,
    sigmoid, one sample at a time, initial weights uniform in +-0.05.
    """

    coefs_: list[np.ndarray]
    intercepts_: list[np.ndarray]
    loss_curve_: list[float]
    n_iter_: int
    classes_: np.ndarray
    n_features_in_: int
    validation_scores_: list[float]
    device_: str
    algorithm_: str
    _state: TrainState

    def __init__(self, sizes: Sequence[int] = (), *, activation: str = "sigmoid",
                 loss: str = "squared_error", learning_rate: float = 0.3,
                 schedule: Schedule = "constant", momentum: float = 0.0,
                 weight_decay: float = 0.0, batch: int = 1, epochs: int = 10,
                 target_error: float | None = None, shuffle: bool = False,
                 initial: str = "uniform", seed: int | None = 0,
                 device: str | Device | None = None, effort: str | None = None,
                 algorithm: str | None = None) -> None:
        self.sizes = sizes
        self.activation = activation
        self.loss = loss
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch = batch
        self.epochs = epochs
        self.target_error = target_error
        self.shuffle = shuffle
        self.initial = initial
        self.seed = seed
        self.device = device
        self.effort = effort
        self.algorithm = algorithm

    def fit(self, x: Any, y: Any, *, validation: tuple[Any, Any] | None = None,
            on_epoch: OnEpoch | None = None, checkpoint: str | Path | None = None,
            resume: bool = False) -> MLP:
        """Train the network from the start.

        Finished epochs are kept, here and in the checkpoint, when Ctrl-C or on_epoch interrupts
        the training.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples; float32 is trained on.
        y : array_like, shape (n,) or (n, outputs)
            One integer or string label for each sample to classify, or float targets; targets of
            a single output may have the shape (n,).
        validation : pair of array_like, optional
            x and y to evaluate the network on after each epoch.
        on_epoch : callable, optional
            Function that is called with a Progress after each epoch.
        checkpoint : str or Path, optional
            File that is replaced after epochs, so that training can continue from it.
        resume : bool
            True to continue from the checkpoint. With the same algorithm on the same device the
            result has the same bits as training without the break.

        Returns
        -------
        MLP
            The network itself.

        Raises
        ------
        InputError
            If settings or data are wrong, or the checkpoint belongs to other settings or data.
        TrainingError
            If training diverges; the network is then as it was before that epoch.
        OutOfMemoryError
            If the device has no room.
        """
        settings = Settings.of(self)
        memory.check(settings, device_of(self))
        data = samples(x, y, settings.sizes)
        validation_data = None if validation is None else validation_samples(
            validation, settings.sizes, data)
        if resume and checkpoint is None:
            raise InputError("resume=True needs the checkpoint to go on from: checkpoint=FILE")
        checkpointer = (None if checkpoint is None
                        else Checkpointer(Path(checkpoint), data.digest()))
        state = (checkpointer.resume(settings) if checkpointer and resume
                 else TrainState.start(settings))
        training = TrainLoop([state], data, [np.arange(len(data.x))], device_of(self), self.effort,
                             self.algorithm)
        self.validation_scores_ = []
        throttle = Throttle()
        try:
            while not state.ended:
                seconds = training.step()
                if checkpointer and throttle.due:
                    with throttle:
                        training.fetch_parameters()
                        checkpointer.write(state)
                if (validation_data or on_epoch) and not state.failure:
                    self._report(training, state, data, validation_data, seconds, on_epoch)
        except BaseException:
            # the error that stopped the training may have stopped the device too
            with suppress(GossamerError):
                training.fetch_parameters()
                become(self, state, data, training)
                if checkpointer:
                    checkpointer.write(state)
            raise
        become(self, state, data, training)
        if checkpointer:
            checkpointer.write(state)
        state.check()
        return self

    def partial_fit(self, x: Any, y: Any, classes: Any = None) -> MLP:
        """Train for one more epoch, over these samples.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples; float32 is trained on.
        y : array_like, shape (n,) or (n, outputs)
            Labels or targets, as for fit().
        classes : array_like, optional
            All labels that may occur in later calls; only the first call uses it.

        Returns
        -------
        MLP
            The network itself.

        Raises
        ------
        InputError
            If settings or data are wrong, or y has a label that is not among the classes.
        TrainingError
            If training diverges; the network is then as it was before that epoch.
        OutOfMemoryError
            If the device has no room.
        """
        settings = Settings.of(self)
        memory.check(settings, device_of(self))
        known_classes = getattr(self, "classes_", None)
        if known_classes is None and classes is not None:
            known_classes = np.unique(np.asarray(classes))
            if len(known_classes) != settings.sizes[-1]:
                raise InputError(f"classes has {len(known_classes)} different labels, sizes end in "
                                 f"{settings.sizes[-1]}: expected as many")
        data = samples(x, y, settings.sizes, known_classes)
        if not hasattr(self, "_state"):
            state = TrainState.start(settings)
        else:
            before = self._state
            if hasattr(self, "classes_") != (data.classes is not None):
                raise InputError("y holds labels in one call and numbers in another: expected the "
                                 "same kind as before")
            if before.settings.sizes != settings.sizes:
                raise InputError(f"sizes {settings.sizes}: what is trained has "
                                 f"{before.settings.sizes}; call fit to begin anew")
            state = before.under(settings)
        state.settings = replace(settings, epochs=state.epochs_done + 1, target_error=None)
        training = TrainLoop([state], data, [np.arange(len(data.x))], device_of(self), self.effort,
                             self.algorithm)
        training.step()
        become(self, state, data, training)
        state.check()
        return self

    def predict(self, x: Any) -> np.ndarray:
        """Predict labels or, for regression, numbers; compile to_graph() to do so on a device.

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
            If the network is not trained yet, or x is wrong.
        """
        y = self._outputs(x)
        if hasattr(self, "classes_"):
            return self.classes_[y.argmax(axis=1)]
        return y[:, 0] if y.shape[1] == 1 else y

    def predict_proba(self, x: Any) -> np.ndarray:
        """Predict the probability of each class.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.

        Returns
        -------
        numpy.ndarray
            Float32 of shape (n, classes): the softmax outputs with the loss "cross_entropy",
            otherwise the outputs, with 0 for negative ones, divided by their sum.

        Raises
        ------
        InputError
            If the network is not trained yet or was trained on numbers, or x is wrong.
        """
        if not hasattr(self, "classes_"):
            raise InputError("predict_proba: this network was trained on numbers; expected one "
                             "trained on labels")
        y = self._outputs(x)
        if self._state.settings.loss == "cross_entropy":
            return y
        y = np.maximum(y, 0)
        total = y.sum(axis=1, keepdims=True)
        return np.where(total > 0, y / np.where(total > 0, total, 1), np.float32(1 / y.shape[1]))

    def score(self, x: Any, y: Any) -> float:
        """Evaluate the predictions for samples.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples.
        y : array_like, shape (n,) or (n, outputs)
            Right labels, or targets.

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
            data = samples(x, y, network.sizes)
            return determination(network.outputs(data.x), data.targets)
        predictions, labels = self.predict(x), np.asarray(y).reshape(-1)
        if len(labels) != len(predictions):
            raise InputError(f"x has {len(predictions)} rows, y {len(labels)} labels: expected "
                             "as many")
        if len(predictions) == 0:
            raise InputError("x has no rows: expected at least one sample")
        check_kind(labels, self.classes_, "")
        return float((predictions == labels).mean())

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
        from gossamer.train.export import onnx_file

        network = self._network()
        return onnx_file.graph(network.layers, network.activations, onnx_file.model_metadata(
            network.activations, getattr(self, "classes_", None)))

    def save_onnx(self, path: str | Path, preparation: Preparation | None = None) -> None:
        """Write the network to an ONNX file.

        The file has the input x (N, inputs) and the output y (N, outputs), both float32. The
        labels are in its metadata, as JSON under the key `classes`.

        Parameters
        ----------
        path : str or Path
            Name of the file, which ends in .onnx.
        preparation : Preparation, optional
            Steps that were applied to the samples before fit(). The file begins with them, and
            takes samples that are not prepared.

        Raises
        ------
        InputError
            If the network is not trained yet, the preparation does not end in its inputs, or the
            file cannot be written.
        """
        from gossamer.train.export import onnx_file, preparation_nodes

        network = self._network()
        model = onnx_file.model(network.layers, network.activations, onnx_file.model_metadata(
            network.activations, getattr(self, "classes_", None), preparation))
        if preparation:
            preparation_nodes.put_before(model, preparation)
        onnx_file.write(Path(path), model)

    def _report(self, training: TrainLoop, state: TrainState, data: Samples,
                validation_data: Samples | None, seconds: float,
                on_epoch: OnEpoch | None) -> None:
        """Evaluate the network on the validation data after an epoch, and call on_epoch."""
        loss = score = None
        if validation_data is not None:
            training.fetch_parameters()
            if state.failure:
                return
            network = TrainedNetwork.of(state)
            outputs = network.outputs(validation_data.x)
            loss = network.loss(outputs, validation_data.x, validation_data.targets)
            score = network.score(outputs, validation_data)
            self.validation_scores_.append(score)
        if on_epoch is None:
            return

        def accuracy() -> float | None:
            training.fetch_parameters()
            return None if data.labels is None else TrainedNetwork.of(state).judged(
                data, np.arange(len(data.x)))

        on_epoch(Progress(state.epochs_done, state.settings.epochs, state.curve[-1], loss,
                          None if data.labels is None else score, len(data.x) / max(seconds, 1e-9),
                          training.device.name, training.algorithm, accuracy))

    def _network(self) -> TrainedNetwork:
        """Return the network with the parameters in coefs_ and intercepts_."""
        if not hasattr(self, "_state"):
            raise InputError("this MLP is not trained yet: call fit first")
        return TrainedNetwork.with_layers(self._state.settings, [
            (weight.T, bias) for weight, bias in zip(self.coefs_, self.intercepts_, strict=True)])

    def _outputs(self, x: Any) -> np.ndarray:
        network = self._network()
        return network.outputs(matrix(x, network.sizes[0], "x"))


def device_of(mlp: MLP) -> Device:
    """Return the device that the network is to be trained on."""
    return mlp.device if isinstance(mlp.device, Device) else find(mlp.device)


def become(mlp: MLP, state: TrainState, data: Samples, training: TrainLoop | None) -> None:
    """Give a training state to an MLP, as its attributes.

    Parameters
    ----------
    mlp : MLP
        The network that changes.
    state : TrainState
        Its training state.
    data : Samples
        The samples that it was trained on.
    training : TrainLoop or None
        Loop that trained it; None where the state comes from a checkpoint alone.
    """
    mlp._state = state
    layers = TrainedNetwork.of(state).layers
    mlp.coefs_ = [weight.T.copy() for weight, _ in layers]
    mlp.intercepts_ = [bias.copy() for _, bias in layers]
    mlp.loss_curve_, mlp.n_iter_ = list(state.curve), state.epochs_done
    mlp.n_features_in_ = state.settings.sizes[0]
    if training is not None:
        mlp.device_, mlp.algorithm_ = training.device.name, training.algorithm
    if data.classes is not None:
        mlp.classes_ = data.classes
    elif hasattr(mlp, "classes_"):
        del mlp.classes_
