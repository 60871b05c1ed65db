"""The suites of training: one epoch over the samples, by one network and by many at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from gossamer.bench.work import OWN, AbsentError, Setting
from gossamer.errors import InputError
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.registry import OPS
from gossamer.train.data import sources
from gossamer.train.data.dataset import Dataset, Preparation, prepared
from gossamer.train.data.samples import Samples
from gossamer.train.loop.algorithm_choice import AlgorithmChoice, choose
from gossamer.train.loop.settings import UNIFORM
from gossamer.train.loop.trainer import Trainer
from gossamer_bench.contender import Alternative, ReadyContender
from gossamer_bench.peers.training_peers import TRAINING_PEERS
from gossamer_bench.training_work import EpochWork, TrainingRun, ready
from gossamer_bench.work import Case, Files, Item

_PUBLISHED_INPUTS = 1024
"""Number of inputs for which pictures are padded to 32 x 32 and binarised, as in the published
experiment; pictures for 784 inputs have 28 x 28 grey levels."""
_DENSITIES = {True: 0.101, False: 0.191}
"""Share of nonzero inputs in MNIST, by whether the inputs are binarised."""
_CHECKED, _CHECKED_IN_ALL, _LEAST_CHECKED = 1000, 20_000, 100
"""Networks are compared with the reference after training on some samples. These three numbers
bound how many: the most samples for one network, the most samples for all networks together, and
the least samples for each network."""


@dataclass(frozen=True)
class TrainingCase:
    """Training of one network or of several with the same sizes, which all see the same samples.

    sizes: units of each layer, inputs first.
    """

    name: str
    sizes: tuple[int, ...]
    samples: int
    networks: int = 1


PUBLISHED = (1024, 32, 10)
BACKPROP = (*(TrainingCase(f"1024-32-10/{samples}", PUBLISHED, samples)
              for samples in (10_000, 20_000, 40_000, 60_000)),
            TrainingCase("784-128-10", (784, 128, 10), 60_000),
            TrainingCase("784-300-100-10", (784, 300, 100, 10), 60_000))
MANY = tuple(TrainingCase(f"1024-32-10/x{networks}", PUBLISHED, 10_000, networks)
             for networks in (1, 16, 132, 264))


def backprop(batch: int, files: Files) -> list[Item]:
    """Returns online training of one network. The training has no batch size."""
    return [_item("backprop", training) for training in BACKPROP]


def train_many(batch: int, files: Files) -> list[Item]:
    """Returns online training of several networks at once. The training has no batch size."""
    return [_item("train-many", training) for training in MANY]


def _item(suite: str, training: TrainingCase) -> Item:
    return Item(suite, training.name, 1, partial(training_case, suite, training),
                is_training=True)


def training_case(suite: str, training: TrainingCase, setting: Setting) -> Case:
    """Makes the case of training on MNIST, or on similar random inputs where MNIST is not
    installed.

    Times, FLOPs (without operations on zero inputs) and bytes are stated for one sample of one
    network. The error is the error of the change of the parameters.
    """
    task = make_epoch(training)
    problem, device = task.problem, setting.device
    # networks train without weight decay
    choice = partial(choose, problem.like(task.x, decay=False), device, setting.effort)
    contenders: dict[str, Callable[[], list[Alternative]]] = {
        OWN: lambda: [_gossamer(OWN, task, choice(None))]}

    def forced(name: str) -> list[Alternative]:
        try:
            return [_gossamer(f"{OWN}:{name}", task, choice(name))]
        except InputError as reason:
            raise AbsentError(str(reason)) from None

    for algorithm in OPS[problem.op].algorithms:
        contenders[f"{OWN}:{algorithm.name}"] = partial(forced, algorithm.name)
    for name in setting.against:
        contenders[name] = partial(TRAINING_PEERS[name], task, device)
    updates = problem.samples * problem.networks
    zeros = 1 - np.count_nonzero(task.x) / task.x.size
    # a zero input needs no work in the first layer: neither in the forward pass, nor when weights
    # are updated
    skipped_flops = round(zeros * 4 * training.sizes[0] * training.sizes[1])
    note = (f"{problem.describe()}; times of one sample of one network; inputs: "
            f"{task.inputs or 'MNIST'}, {zeros:.1%} of them zero")
    return Case(suite, training.name, 1, problem.flops // updates - skipped_flops,
                -(-problem.least_bytes // updates), 1.0, task.expected(),
                (note,), contenders=contenders)


def _gossamer(contender: str, task: EpochWork, choice: AlgorithmChoice) -> Alternative:
    """Returns the way to train with gossamer. It does what MLP.fit does, and so also fetches the
    mean loss of each epoch."""
    def make() -> ReadyContender:
        samples = Samples(task.x, task.targets)
        settings = task.settings()

        def begin(count: int) -> TrainingRun:
            trainer = Trainer(task.problem.of_samples(count), samples, task.start, choice)
            order = task.order(count)

            def work(stream: Any) -> None:
                trainer.run(order, settings)
                trainer.accept()

            return TrainingRun(work, trainer.parameters)

        config_text = choice.variant(task.problem.of_samples(
            min(choice.samples, task.problem.samples))).config_text
        return ready(contender, choice.device, task, begin, "row",
                     " ".join(filter(None, (choice.algorithm.name, config_text))))

    return Alternative(choice.algorithm.name, make)


def make_epoch(training: TrainingCase) -> EpochWork:
    """Returns the work of one epoch, the same in every call."""
    rng = np.random.default_rng(0)
    x, targets, inputs = _samples(training.sizes[0], training.sizes[-1], training.samples)
    problem = BackpropProblem(training.sizes, len(x), len(x), networks=training.networks)
    start = rng.uniform(-UNIFORM, UNIFORM, (training.networks, problem.weight_count))
    checked = max(_LEAST_CHECKED, min(_CHECKED, _CHECKED_IN_ALL // training.networks))
    judged = sorted({0, training.networks // 2, training.networks - 1})
    return EpochWork(problem, x, targets, start.astype(np.float32), min(checked, len(x)),
                     tuple(judged), inputs)


@cache
def _samples(inputs: int, outputs: int, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns the inputs x, one-hot targets, and a description of x where x is not from MNIST."""
    binarised = inputs == _PUBLISHED_INPUTS
    pictures = _mnist(count) if inputs in (_PUBLISHED_INPUTS, 784) and outputs == 10 else None
    if pictures is not None:
        dataset = prepared(pictures, Preparation(True, 0.5, (32, 32)) if binarised
                           else Preparation(True))
        return dataset.x, np.eye(outputs, dtype=np.float32)[dataset.y], ""
    rng = np.random.default_rng(0)
    x = (rng.random((count, inputs), np.float32) < _DENSITIES[binarised]).astype(np.float32)
    if not binarised:
        x *= rng.random(x.shape, np.float32)
    targets = np.eye(outputs, dtype=np.float32)[rng.integers(0, outputs, count)]
    return x, targets, "random inputs"


def _mnist(count: int) -> Dataset | None:
    """Returns the first training samples of MNIST; None where MNIST is not installed or has fewer
    samples."""
    try:
        dataset, _ = sources.load(sources.mnist()[0], limit=count)
    except InputError:
        return None
    return dataset if len(dataset.x) == count else None
