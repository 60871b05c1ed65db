"""MLP: a fully connected network that is trained on one device."""

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
    """A fully connected network, trained sample by sample or in small batches on one device, by
    the conventions of scikit-learn.

    sizes: units of all layers, inputs first: (784, 32, 10). activation: "sigmoid", "tanh" or
    "relu", of the hidden layers. loss: "squared_error" (the outputs have the activation too, but
    none for relu) or "cross_entropy" (softmax outputs). learning_rate; schedule: what it is
    multiplied by in each epoch: "constant", "inverse" (1 / (1 + epochs done)),
    ("step", every, factor), or a function of the epochs done. momentum, weight_decay: as in
    BackpropProblem. batch: samples an update. epochs: epochs over the data at most; target_error:
    the mean loss of a epoch at which training stops before. shuffle: whether each epoch has an
    order of its own; else it is that of the rows. initial: "uniform" in +-0.05, or "glorot".
    seed: of the initial parameters and the orders; None for others each time.
    device: "cuda:0", "opencl:0", "host", or None for the best. effort: "quick", "normal" or "max"
    to measure all algorithms, seconds to minutes at the first network of these sizes on this
    device and data about as dense, and take the fastest. Without one that is taken which is
    expected to be, and nothing is measured: "blocked" where one work-group can train so (samples
    one by one without momentum, one hidden layer of 64 units at most); else "persistent" where a
    network fits the shared memory of one work-group; else "blocked" by launches; else "per_step";
    on the host "numpy". algorithm: the name of one to take.

    From the same settings and data every device comes to the same parameters, to rounding.

    After training: coefs_ (units before, units) and intercepts_ of each layer, loss_curve_ (mean
    loss of each epoch), n_iter_ (epochs), classes_ (not for regression), n_features_in_,
    validation_scores_ (of each epoch of the last fit with validation data: accuracy, or R^2),
    device_ and algorithm_ (what trained).

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
        """Trains from the start: x (n, inputs); y n integer labels or strings to classify, or
        targets (n, outputs) (or (n,) floats where there is one output).

        validation: x and y to evaluate on after each epoch. on_epoch: called after each epoch.
        checkpoint: a file that is replaced after epochs, so that training can go on from it.
        resume: goes on from that file; with the same algorithm on the same device the result has
        the same bits as without the break.
        What was trained when Ctrl-C comes, or on_epoch raises, is kept, here and in the
        checkpoint.

        Raises InputError for wrong settings or data, or a checkpoint of others; TrainingError
        when training diverges, and the network is then as it was before that epoch.
        """
        settings = Settings.of(self)
        memory.check(settings, device_of(self))
        data = samples(x, y, settings.sizes)
        held = None if validation is None else validation_samples(validation, settings.sizes, data)
        if resume and checkpoint is None:
            raise InputError("resume=True needs the checkpoint to go on from: checkpoint=FILE")
        checkpointer = Checkpointer(Path(checkpoint), data.digest()) if checkpoint is not None else None
        state = checkpointer.resume(settings) if checkpointer and resume else TrainState.start(settings)
        training = TrainLoop([state], data, [np.arange(len(data.x))], device_of(self), self.effort,
                            self.algorithm)
        self.validation_scores_ = []
        throttle = Throttle()
        try:
            while not state.ended:
                seconds = training.step()
                if checkpointer and throttle.due:
                    with throttle:
                        training.sync_parameters()
                        checkpointer.write(state)
                if (held or on_epoch) and not state.failure:
                    self._tell(training, state, data, held, seconds, on_epoch)
        except BaseException:
            # what stopped the work may have stopped the device too
            with suppress(GossamerError):
                training.sync_parameters()
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
        """One epoch over the data, from where training stands. classes: all labels that may come,
        at the first call.

        Raises as fit() does; labels that are new raise InputError.
        """
        settings = Settings.of(self)
        memory.check(settings, device_of(self))
        known = getattr(self, "classes_", None)
        if known is None and classes is not None:
            known = np.unique(np.asarray(classes))
            if len(known) != settings.sizes[-1]:
                raise InputError(f"classes has {len(known)} different labels, sizes end in "
                                 f"{settings.sizes[-1]}: expected as many")
        data = samples(x, y, settings.sizes, known)
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
        """(n,) the labels of the largest outputs; for regression the outputs, (n, outputs) or
        (n,) where there is one. Computed on the host; for a device, compile to_graph()."""
        y = self._outputs(x)
        if hasattr(self, "classes_"):
            return self.classes_[y.argmax(axis=1)]
        return y[:, 0] if y.shape[1] == 1 else y

    def predict_proba(self, x: Any) -> np.ndarray:
        """(n, classes) softmax outputs; of another loss the outputs, negative ones as 0, over
        their sum."""
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
        """The share of labels that predict() gets right; for regression the coefficient of
        determination R^2, averaged over the outputs."""
        network = self._network()
        if not hasattr(self, "classes_"):
            data = samples(x, y, network.sizes)
            return determination(network.outputs(data.x), data.targets)
        found, labels = self.predict(x), np.asarray(y).reshape(-1)
        if len(labels) != len(found):
            raise InputError(f"x has {len(found)} rows, y {len(labels)} labels: expected as many")
        if len(found) == 0:
            raise InputError("x has no rows: expected at least one sample")
        check_kind(labels, self.classes_, "")
        return float((found == labels).mean())

    def to_graph(self) -> Graph:
        """The network as a graph, for gossamer.compile: input x (N, inputs), output y."""
        from gossamer.train.export import onnx_file

        network = self._network()
        return onnx_file.graph(network.layers, network.activations, onnx_file.model_metadata(
            network.activations, getattr(self, "classes_", None)))

    def save_onnx(self, path: str | Path, preparation: Preparation | None = None) -> None:
        """Writes the network as ONNX: input x (N, inputs), output y (N, outputs), before the
        label is chosen. The labels are kept in the metadata, as JSON under the key `classes`.

        preparation: what was done to samples before fit(); the file then takes them as they were.
        Raises InputError where the file cannot be written.
        """
        from gossamer.train.export import onnx_file, preparation_nodes

        network = self._network()
        made = onnx_file.model(network.layers, network.activations, onnx_file.model_metadata(
            network.activations, getattr(self, "classes_", None), preparation))
        if preparation:
            preparation_nodes.put_before(made, preparation)
        onnx_file.write(Path(path), made)

    def _tell(self, training: TrainLoop, state: TrainState, data: Samples, held: Samples | None,
              seconds: float, on_epoch: OnEpoch | None) -> None:
        """Evaluates on the validation data after a epoch, and calls on_epoch."""
        loss = score = None
        if held is not None:
            training.sync_parameters()
            if state.failure:
                return
            network = TrainedNetwork.of(state)
            outputs = network.outputs(held.x)
            loss, score = network.loss(outputs, held.x, held.targets), network.score(outputs, held)
            self.validation_scores_.append(score)
        if on_epoch is None:
            return

        def accuracy() -> float | None:
            training.sync_parameters()
            return None if data.labels is None else TrainedNetwork.of(state).judged(
                data, np.arange(len(data.x)))

        on_epoch(Progress(state.epochs_done, state.settings.epochs, state.curve[-1], loss,
                          None if data.labels is None else score, len(data.x) / max(seconds, 1e-9),
                          training.device.name, training.algorithm, accuracy))

    def _network(self) -> TrainedNetwork:
        """Of coefs_ and intercepts_."""
        if not hasattr(self, "_state"):
            raise InputError("this MLP is not trained yet: call fit first")
        return TrainedNetwork.with_layers(self._state.settings, [
            (weight.T, bias) for weight, bias in zip(self.coefs_, self.intercepts_, strict=True)])

    def _outputs(self, x: Any) -> np.ndarray:
        network = self._network()
        return network.outputs(matrix(x, network.sizes[0], "x"))


def device_of(mlp: MLP) -> Device:
    """Where it is to be trained."""
    return mlp.device if isinstance(mlp.device, Device) else find(mlp.device)


def become(mlp: MLP, state: TrainState, data: Samples, training: TrainLoop | None) -> None:
    """Gives the MLP what was trained. training: None where it only comes from a checkpoint."""
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
