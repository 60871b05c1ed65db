"""The suites of training: one epoch over samples, by one network and by many at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from gossamer.bench.peers.peer import OWN, AbsentError, Alternative, ReadyContender
from gossamer.bench.peers.training_peers import TRAINING_PEERS
from gossamer.bench.training_work import EpochWork, TrainingRun, ready
from gossamer.bench.work import Case, Files, Item, Setting
from gossamer.errors import InputError
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.registry import OPS
from gossamer.train.data import sources
from gossamer.train.data.dataset import Dataset, prepared
from gossamer.train.data.preparation import Preparation
from gossamer.train.data.samples import Samples
from gossamer.train.loop.algorithm_choice import AlgorithmChoice, choose
from gossamer.train.loop.settings import UNIFORM
from gossamer.train.loop.trainer import Trainer

_PUBLISHED_INPUTS = 1024
"""Pictures padded to 32 x 32 and binarised; others have 28 x 28 grey levels."""
_DENSITIES = {True: 0.101, False: 0.191}
"""The share of MNIST's inputs that are not zero, binarised and as they are."""
_CHECKED, _CHECKED_IN_ALL, _LEAST_CHECKED = 1000, 20_000, 100
"""Samples after which networks are compared: of one, of all together, and of each at least."""


@dataclass(frozen=True)
class TrainingCase:
    """Networks of these sizes, which all see the same samples."""

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
    """Online training of one network; knows no batch."""
    return [_item("backprop", each) for each in BACKPROP]


def train_many(batch: int, files: Files) -> list[Item]:
    """Online training of several networks at once; knows no batch."""
    return [_item("train-many", each) for each in MANY]


def _item(suite: str, training: TrainingCase) -> Item:
    return Item(suite, training.name, 1, partial(training_case, suite, training),
                is_training=True)


def training_case(suite: str, training: TrainingCase, setting: Setting) -> Case:
    """Training on MNIST, or on inputs like its where that is not installed. Times, FLOPs (zeros
    among the inputs left out) and bytes are those of one sample of one network; the error is that
    of what training changed."""
    task = make_epoch(training)
    problem, device = task.problem, setting.device
    # networks train without weight decay
    choice = partial(choose, problem.like(task.x, decay=False), device, setting.effort)
    contenders: dict[str, Callable[[], list[Alternative]]] = {
        OWN: lambda: [_own(OWN, task, choice(None))]}

    def forced(name: str) -> list[Alternative]:
        try:
            return [_own(f"{OWN}:{name}", task, choice(name))]
        except InputError as reason:
            raise AbsentError(str(reason)) from None

    for algorithm in OPS[problem.op].algorithms:
        contenders[f"{OWN}:{algorithm.name}"] = partial(forced, algorithm.name)
    for name in setting.against:
        contenders[name] = partial(TRAINING_PEERS[name], task, device)
    each = problem.samples * problem.networks
    # of the first layer, forward and in the update
    zeros = 1 - np.count_nonzero(task.x) / task.x.size
    idle = round(zeros * 4 * training.sizes[0] * training.sizes[1])
    note = (f"{problem.describe()}; times of one sample of one network; inputs: "
            f"{task.inputs or 'MNIST'}, {zeros:.1%} of them zero")
    return Case(suite, training.name, 1, problem.flops // each - idle,
                -(-problem.least_bytes // each), 1.0, task.expected(), contenders, (note,))


def _own(contender: str, task: EpochWork, choice: AlgorithmChoice) -> Alternative:
    """Training as MLP does it: the mean loss of each epoch is fetched."""
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

        label = choice.variant(task.problem.of_samples(
            min(choice.samples, task.problem.samples))).config_text
        return ready(contender, choice.device, task, begin, "row",
                     " ".join(filter(None, (choice.algorithm.name, label))))

    return Alternative(choice.algorithm.name, make)


def make_epoch(training: TrainingCase) -> EpochWork:
    """The same for each call."""
    rng = np.random.default_rng(0)
    x, targets, inputs = _lessons(training.sizes[0], training.sizes[-1], training.samples)
    problem = BackpropProblem(training.sizes, len(x), len(x), networks=training.networks)
    start = rng.uniform(-UNIFORM, UNIFORM, (training.networks, problem.weight_count))
    checked = max(_LEAST_CHECKED, min(_CHECKED, _CHECKED_IN_ALL // training.networks))
    judged = sorted({0, training.networks // 2, training.networks - 1})
    return EpochWork(problem, x, targets, start.astype(np.float32), min(checked, len(x)),
                tuple(judged), inputs)


@cache
def _lessons(inputs: int, outputs: int, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """x, one-hot targets, and what x is where it is not MNIST's."""
    binarised = inputs == _PUBLISHED_INPUTS
    pictures = _mnist(count) if inputs in (_PUBLISHED_INPUTS, 784) and outputs == 10 else None
    if pictures is not None:
        made = prepared(pictures, Preparation(True, 0.5, (32, 32)) if binarised
                        else Preparation(True))
        return made.x, np.eye(outputs, dtype=np.float32)[made.y], ""
    rng = np.random.default_rng(0)
    x = (rng.random((count, inputs), np.float32) < _DENSITIES[binarised]).astype(np.float32)
    if not binarised:
        x *= rng.random(x.shape, np.float32)
    targets = np.eye(outputs, dtype=np.float32)[rng.integers(0, outputs, count)]
    return x, targets, "random inputs"


def _mnist(count: int) -> Dataset | None:
    """The first samples to train on, where MNIST is installed and has as many."""
    try:
        found, _ = sources.load(sources.mnist()[0], limit=count)
    except InputError:
        return None
    return found if len(found.x) == count else None
