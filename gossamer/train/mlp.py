"""MLP: a fully connected network, trained on one device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import ArrayError, ConvergenceWarning, GossamerError, InputError
from gossamer.train.data.matrix import BALANCED, check_feature_names
from gossamer.train.data.samples import Samples, listed, validation_samples
from gossamer.train.loop.checkpoint import Checkpointer, Throttle
from gossamer.train.loop.settings import Schedule, Settings, given_sizes
from gossamer.train.loop.train_loop import TrainLoop
from gossamer.train.loop.train_state import OnEpoch, Progress, TrainState
from gossamer.train.network import TrainedNetwork, judged_rows
from gossamer.train.predictor import Predictor, become, shared_with_scikit_learn
from gossamer.train.training_data import digest_of, given_samples, trainable

PUBLISHED: dict[str, Any] = {
    "activation": "sigmoid", "loss": "squared_error", "optimiser": "sgd", "learning_rate": 0.3,
    "batch": 1, "epochs": 10, "patience": None, "keep": "last", "shuffle": False,
    "scale_targets": False, "initial": "uniform"}
"""Settings of the published training (see MLP's Notes) that differ from the defaults of MLP."""


class MLP(Predictor):
    """A fully connected network, trained by back-propagation on one device.

    The class follows the conventions of scikit-learn: it classifies as MLPClassifier does and
    predicts numbers as MLPRegressor does, and its default settings reach results as good as the
    defaults of those classes. With the same settings and data all devices reach the same
    parameters, up to rounding.

    Parameters
    ----------
    sizes : sequence of int
        Number of units of each layer, inputs first and outputs last, such as (784, 32, 10).
        If it is empty, the data determine the numbers of inputs and outputs, and `hidden`
        determines the hidden layers.
    hidden : int or sequence of int, optional
        Number of units of each hidden layer; an int means a single hidden layer, and None one
        hidden layer of 100 units. Must be None if `sizes` is given.
    task : {"classification", "regression"} or None
        Whether y holds a label for each sample, or regression targets. With None, integers,
        booleans and strings are labels, and floats are targets. Floats with only a few distinct
        values, all of them whole, cause a warning, because they may be meant as labels.
    class_weight : mapping, "balanced" or None
        Factor for the losses of each label's samples; labels that are not in the mapping have the
        factor 1. With "balanced", all classes have the same total weight. A sample's weight is the
        product of its class weight and its `sample_weight`, divided by the mean of these products.
    activation : {"relu", "sigmoid", "tanh"}
        Activation of the hidden layers.
    output : {"linear", "sigmoid", "tanh"} or None
        Activation of the outputs with "squared_error". None means "linear" for regression. For
        classification it means the activation of the hidden layers, or "linear" if they have
        "relu".
    loss : {"cross_entropy", "squared_error"} or None
        With "cross_entropy" the outputs are a softmax. None means "cross_entropy" for labels and
        "squared_error" for regression targets.
    optimiser : {"adam", "sgd"}
        Update rule of the parameters: Adam, or stochastic gradient descent.
    learning_rate : float or None
        Factor of each change of a parameter, above 0. None means 0.001 for "adam" and 0.1 for
        "sgd".
    schedule : str, tuple or callable
        Factor of the learning rate in each epoch: "constant" (1), "inverse"
        (1 / (1 + epochs done)), ("step", every, factor) (multiplied by `factor` after each
        `every` epochs), or a function of the number of epochs done (int) that returns a float.
    momentum : float
        For "sgd", the fraction of a parameter's last change that is added to its next change, at
        least 0 and below 1.
    weight_decay : float
        Multiple of each weight that is added to its gradient, at least 0; biases do not decay.
    batch : int or None
        Number of samples per update; 1 is online training. None means 200, or all samples if there
        are fewer.
    epochs : int
        Maximum number of epochs; an epoch is one pass over all samples.
    target_error : float, optional
        Training stops early when the mean loss of an epoch is at most this number.
    patience : int or None
        Number of epochs without improvement after which training stops early; None disables early
        stopping. With validation data and keep="best", an epoch is an improvement if its validation
        score is higher, or if the score is equal and the validation loss is smaller. Without
        validation data, or with keep="last", an epoch is an improvement if its mean training loss
        is smaller. In both cases a loss must be smaller by at least 0.0001.
    keep : {"best", "last"}
        Epoch whose parameters are kept: the best on the validation data, or the last. Without
        validation data it is always the last.
    shuffle : bool
        True to use a new random order of the rows in each epoch, False to keep their order.
    standardise : bool
        True to standardise the inputs before training: each column minus its mean, divided by its
        standard deviation. The trained network accepts inputs that are not standardised.
    scale_targets : bool
        True to standardise the numbers in y before training if the outputs are linear. The trained
        network predicts numbers on the scale of y, but the losses of training are those of the
        standardised numbers.
    initial : {"glorot", "uniform"}
        Distribution of the initial parameters: "glorot" draws the weights uniformly within
        Glorot's bounds and sets the biases to 0; "uniform" draws both between -0.05 and 0.05.
    seed : int or None
        Seed of the initial parameters and of the orders of the samples; None means a new seed for
        each training.
    device : str, Device or None
        Training device: "cuda:0", "opencl:0", "host", or None for the best device: CUDA, else an
        OpenCL GPU, else the host. An OpenCL CPU device must be named. A device on which training is
        slower than with NumPy causes a warning.
    effort : {"quick", "normal", "max"} or None
        Effort at which all algorithms are measured to find the fastest. Measuring needs seconds to
        minutes the first time that a network of these sizes is trained on this device with data of
        about this density. With None, nothing is measured, and the algorithm that is expected to be
        the fastest is used (see Notes).
    algorithm : str or None
        Name of the training algorithm; None means that `effort` selects it.
    precision : {"fp32", "tf32"}
        Lowest precision allowed. With "tf32", "batched" rounds the operands of products to 11
        significant bits, and computes the products on an NVIDIA GPU's tensor cores. Parameters,
        sums and updates stay float32. Without an effort, a warning says if TF32 is not used. With
        an effort, variants whose error is above 0.002 after the measured samples are not used; with
        "adam" errors are often larger.
    **unknown
        Any other parameter raises an InputError. For a parameter of scikit-learn's networks, the
        message names the equivalent in MLP.

    Attributes
    ----------
    coefs_ : list of numpy.ndarray
        Weights of each layer, float32 of shape (units of the layer before, units).
    intercepts_ : list of numpy.ndarray
        Biases of each layer, float32 of shape (units,).
    loss_curve_ : list of float
        Mean loss of each epoch. The loss of a sample is computed before the sample's update.
    n_iter_ : int
        Number of finished epochs.
    kept_epoch_ : int
        Number, from 1, of the epoch that the parameters come from.
    classes_ : numpy.ndarray
        Labels in the order of the outputs; absent for regression.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : numpy.ndarray
        Names of the columns of x, of shape (n_features_in_,); absent if x had none.
    validation_scores_ : list of float
        Score on the validation data after each epoch of the last fit: the accuracy, or R^2.
    device_ : str
        Name of the training device.
    algorithm_ : str
        Name of the training algorithm.

    Notes
    -----
    On GPUs, without an effort, the first algorithm that applies is used:

    1. "blocked" by one work-group: "sgd" with batch 1, no momentum, one hidden layer of at most 64
       units.
    2. "persistent": "sgd" with batch 1, and the network fits into the shared memory of one
       work-group.
    3. "blocked" with several launches: "sgd" with batch 1, no momentum.
    4. "batched": the weights fit into the shared memory of a group of work-groups.
    5. "per_step".

    The first three do not support sample weights with "squared_error".

    The host always uses "numpy".

    Sources: published() uses the settings of a publication of 2013 on back-propagation on a GPU
    with all data in GPU memory. Adam: D. P. Kingma and J. Ba, "Adam: a method for stochastic
    optimization", ICLR 2015.
    """

    validation_scores_: list[float]

    def __init__(self, sizes: Sequence[int] = (), *, hidden: int | Sequence[int] | None = None,
                 task: str | None = None,
                 class_weight: Mapping[Any, float] | str | None = None,
                 activation: str = "relu", output: str | None = None,
                 loss: str | None = None, optimiser: str = "adam",
                 learning_rate: float | None = None, schedule: Schedule = "constant",
                 momentum: float = 0.0, weight_decay: float = 0.0, batch: int | None = None,
                 epochs: int = 200, target_error: float | None = None,
                 patience: int | None = 10, keep: str = "best", shuffle: bool = True,
                 standardise: bool = False, scale_targets: bool = True, initial: str = "glorot",
                 seed: int | None = 0, device: str | Device | None = None,
                 effort: str | None = None, algorithm: str | None = None,
                 precision: str = "fp32", **unknown: Any) -> None:
        for name in unknown:
            raise self.unknown(name)
        self.sizes = sizes
        self.hidden = hidden
        self.task = task
        self.class_weight = class_weight
        self.activation = activation
        self.output = output
        self.loss = loss
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.batch = batch
        self.epochs = epochs
        self.target_error = target_error
        self.patience = patience
        self.keep = keep
        self.shuffle = shuffle
        self.standardise = standardise
        self.scale_targets = scale_targets
        self.initial = initial
        self.seed = seed
        self.device = device
        self.effort = effort
        self.algorithm = algorithm
        self.precision = precision

    @classmethod
    def published(cls, sizes: Sequence[int] = (), **settings: Any) -> MLP:
        """Return a network with the published settings (see MLP's Notes).

        All layers, including the outputs, have sigmoid units and initial parameters between -0.05
        and 0.05. Training is online, in the order of the rows, with squared error, a learning rate
        of 0.3 and no momentum. There are 10 epochs without early stopping, and the parameters after
        the last epoch are kept.

        Parameters
        ----------
        sizes : sequence of int
            Number of units of each layer, as for MLP.
        **settings
            Other parameters of MLP. With squared error, the outputs have the `activation` of the
            hidden layers, also for regression; with "relu" they are linear.

        Returns
        -------
        MLP
            An untrained network.
        """
        chosen = {**PUBLISHED, **settings}
        if chosen["loss"] == "squared_error":
            activation = chosen["activation"]
            chosen.setdefault("output", "linear" if activation == "relu" else activation)
        return cls(sizes, **chosen)

    def fit(self, x: Any, y: Any, sample_weight: Any = None, *,
            validation: tuple[Any, Any] | None = None, on_epoch: OnEpoch | None = None,
            checkpoint: str | Path | None = None, resume: bool = False) -> MLP:
        """Train the network from the start.

        If Ctrl-C or an error in on_epoch interrupts the training, the finished epochs are kept in
        this MLP and in the checkpoint.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples, converted to float32. If x is a data frame, data frames in later calls must
            have the same column names. A sparse matrix of SciPy is converted to a dense one.
        y : array_like, shape (n,) or (n, outputs)
            One integer or string label for each sample to classify, or float targets; targets of
            a single output may have the shape (n,). A matrix of labels (multilabel) is an error.
        sample_weight : array_like of float, shape (n,), optional
            Weight of each sample, 0 or more. The weights are divided by their mean; then the loss
            of each sample is multiplied by the sample's weight.
        validation : pair of array_like, optional
            x and y on which the network is evaluated after each epoch, to find the best epoch.
        on_epoch : callable, optional
            Function that is called with a Progress after each epoch.
        checkpoint : str or Path, optional
            File from which training can continue; it is updated between epochs.
        resume : bool
            True to continue from the checkpoint. With the same algorithm on the same device, the
            result is bit-identical to that of an uninterrupted training.

        Returns
        -------
        MLP
            The network itself.

        Raises
        ------
        InputError
            If settings or data are wrong, or the checkpoint belongs to other settings or data.
        TrainingError
            If training diverges; the network is then as it was before the epoch that diverged.
        OutOfMemoryError
            If the device has no room.

        Warns
        -----
        ConvergenceWarning
            If training ended after all epochs, and not by `patience` or `target_error`.
        """
        data = given_samples(self, x, y, sample_weight)
        settings = Settings.of(self, data.shape)
        data = trainable(settings, data, device_of(self))
        validation_data = None if validation is None else validation_samples(
            validation, settings.sizes, data, self.task)
        if resume and checkpoint is None:
            raise InputError("resume=True needs a checkpoint to continue from: give "
                             "checkpoint=FILE")
        checkpointer = None
        if checkpoint is not None:
            chosen_by = validation_data if settings.keep == "best" else None
            checkpointer = Checkpointer(Path(checkpoint), digest_of(data, chosen_by))
        state = (checkpointer.resume(settings) if checkpointer and resume
                 else TrainState.start(settings))
        training = TrainLoop(
            [state], data, [np.arange(len(data.x))], device_of(self), self.effort, self.algorithm,
            None if validation_data is None
            else lambda state: TrainedNetwork.of(state).validated(validation_data),
            self.precision)
        self.validation_scores_ = []
        throttle = Throttle()
        try:
            while not state.ended:
                seconds = training.step()
                if checkpointer and throttle.due:
                    with throttle:
                        training.fetch_parameters()
                        checkpointer.write(state)
                if state.validation is not None and not state.failure:
                    self.validation_scores_.append(state.validation.score)
                if on_epoch is not None and not state.failure:
                    on_epoch(_progress(training, state, data, seconds))
            become(self, state, data)
        except BaseException:
            # if an error of the device ended the training, these calls may fail, too
            with suppress(GossamerError):
                training.fetch_parameters()
                become(self, state, data)
                if checkpointer:
                    checkpointer.write(state)
            raise
        if checkpointer:
            checkpointer.write(state)
        state.check()
        if settings.patience is not None and not (state.reached or state.out_of_patience):
            warnings.warn("training did not converge: it still improved in its last "
                          f"{min(settings.patience, settings.epochs)} epochs; give more epochs "
                          f"than epochs={settings.epochs}",
                          shared_with_scikit_learn(ConvergenceWarning), stacklevel=2)
        return self

    def partial_fit(self, x: Any, y: Any, classes: Any = None,
                    sample_weight: Any = None) -> MLP:
        """Train for one more epoch on these samples.

        With `standardise` or `scale_targets`, all calls use the means and standard deviations of
        the first call's samples.

        Parameters
        ----------
        x : array_like of float, shape (n, inputs)
            Samples, converted to float32.
        y : array_like, shape (n,) or (n, outputs)
            Labels or targets, as for fit().
        classes : array_like, optional
            All labels that may occur in this and later calls. Later calls need not repeat them.
        sample_weight : array_like of float, shape (n,), optional
            Weight of each sample, as for fit().

        Returns
        -------
        MLP
            The network itself.

        Raises
        ------
        InputError
            If settings or data are wrong, if y has a label that is not among the classes, or if
            `classes` has other labels than before.
        TrainingError
            If training diverges; the network is then as it was before this epoch.
        OutOfMemoryError
            If the device has no room.
        """
        known_classes = getattr(self, "classes_", None)
        before: TrainState | None = getattr(self, "_state", None)
        if before is not None and classes is not None and known_classes is not None and (
                not np.array_equal(np.unique(np.asarray(classes)), known_classes)):
            raise ArrayError(f"classes has the labels {listed(np.unique(np.asarray(classes)))}, "
                             f"but the network was trained with {listed(known_classes)}; call fit "
                             "to start from scratch")
        if before is None and classes is not None:
            known_classes = np.unique(np.asarray(classes))
            sizes = given_sizes(self)
            if sizes and len(known_classes) != sizes[-1]:
                raise InputError(f"classes has {len(known_classes)} different labels, but sizes "
                                 f"end in {sizes[-1]}; expected one output for each label")
        if self.class_weight == BALANCED:
            raise InputError("class_weight 'balanced': partial_fit cannot know how many samples of "
                             "each class will follow; give a mapping from label to weight")
        if before is not None:
            check_feature_names(x, getattr(self, "feature_names_in_", None), "x")
        data = given_samples(self, x, y, sample_weight, known_classes)
        if classes is not None and data.classes is None:
            raise ArrayError("classes: y holds regression targets; give labels (y.astype(int)), or "
                             "omit classes")
        if before is not None:
            self._check_width(data.x)
            data = replace(data, names=getattr(self, "feature_names_in_", None))
        settings = Settings.of(self, data.shape)
        if before is None:
            data = trainable(settings, data, device_of(self))
            state = TrainState.start(settings)
        else:
            if hasattr(self, "classes_") != (data.classes is not None):
                raise ArrayError("y holds labels in one call and regression targets in another: "
                                 "expected the same kind as before")
            if before.settings.sizes != settings.sizes:
                raise ArrayError(f"sizes {settings.sizes}: the network was trained with sizes "
                                 f"{before.settings.sizes}; call fit to start from scratch")
            data = trainable(settings, data, device_of(self), self._scaling)
            state = before.under(settings)
        state.settings = replace(settings, epochs=state.epochs_done + 1, target_error=None,
                                 patience=None)
        training = TrainLoop([state], data, [np.arange(len(data.x))], device_of(self), self.effort,
                             self.algorithm, precision=self.precision)
        training.step()
        become(self, state, data)
        state.check()
        return self


def _progress(training: TrainLoop, state: TrainState, data: Samples, seconds: float) -> Progress:
    """Return the Progress after an epoch of this many seconds."""
    def score() -> float:
        training.fetch_parameters()
        return TrainedNetwork.of(state).score(data.rows(judged_rows(np.arange(len(data.x)))))

    validation = state.validation
    return Progress(
        state.epochs_done, state.settings.epochs, state.curve[-1],
        None if validation is None else validation.loss,
        None if validation is None else validation.score, len(data.x) / max(seconds, 1e-9),
        training.device.name, training.algorithm, score)


def device_of(mlp: MLP) -> Device:
    """Return the device on which a network is to be trained."""
    return mlp.device if isinstance(mlp.device, Device) else find(mlp.device)
