"""Trains gossamer.MLP on MNIST beside PyTorch, JAX and scikit-learn, at the settings people use.

    python benchmarks/training_settings.py fit [--device cuda:0] [-o ROWS.jsonl]
    python benchmarks/training_settings.py sweep [--settings 200] [--peer-settings 50]

`fit` prints, for each setting and contender, the seconds of a whole call from NumPy arrays (ten
epochs, the best of three calls after a first one), and the microseconds of a sample: the time of
twenty epochs less that of ten, for each sample. PyTorch runs up to a hundred steps in one CUDA
graph, with its fused Adam; JAX a compiled scan over the steps of an epoch. Both get a new order of
the samples for each epoch on the device, and return the loss of each epoch, as gossamer does.

`sweep` cross-validates unlike settings (widths 8 to 256, one or two hidden layers, Adam and sgd,
three rates) on five folds for three epochs. Peers train some of the settings, drawn by a seed;
their times are scaled by the number of multiply-adds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

import gossamer
from gossamer.device.registry import find
from gossamer.train.data import sources


@dataclass(frozen=True)
class Setting:
    """A network and how it is trained.

    samples: most samples of a fit; online training by peers takes long.
    """

    hidden: tuple[int, ...]
    batch: int = 200
    optimiser: str = "adam"
    samples: int = 60_000
    given_rate: float | None = None

    @property
    def rate(self) -> float:
        """The learning rate; by default that of MLP."""
        return self.given_rate or {"adam": 1e-3, "sgd": 0.1}[self.optimiser]

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of one sample, forward."""
        return sum(before * units for before, units in pairwise((784, *self.hidden, 10)))


FITS = {
    "784-100-10, Adam, batches of 200": Setting((100,)),
    "784-256-128-10, Adam, batches of 64": Setting((256, 128), 64),
    "784-32-10, Adam, online": Setting((32,), 1, samples=2000),
    "784-100-10, sgd, batches of 200": Setting((100,), optimiser="sgd"),
}
WIDTHS = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
RATES = {"adam": (1e-3, 3e-3, 1e-2), "sgd": (0.03, 0.1, 0.3)}
FOLDS, SWEEP_EPOCHS, SWEEP_BATCH = 5, 3, 200
_MOST_STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("fit", "sweep"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--peer-settings", type=int, default=50)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("-o", metavar="ROWS.jsonl", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn warns where its epochs do not suffice
    data, _ = sources.load(sources.mnist()[0], limit=arguments.samples)
    x, y = np.float32(data.x) / 255, np.asarray(data.y)
    rows = (fits(x, y, arguments.device) if arguments.what == "fit" else
            sweeps(x, y, arguments.device, arguments.settings, arguments.peer_settings))
    where = find(arguments.device).description
    with open(arguments.o or os.devnull, "w", encoding="utf-8") as file:
        for row in rows:
            row = {"device": where, "cores": len(os.sched_getaffinity(0)),
                   **row}
            print(json.dumps(row), flush=True)
            file.write(json.dumps(row) + "\n")
            file.flush()


def fits(x: np.ndarray, y: np.ndarray, device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each setting and contender."""
    on_cuda = device.startswith("cuda")
    for name, setting in FITS.items():
        count = min(setting.samples, len(x))
        given = x[:count], y[:count], setting
        contenders: dict[str, Callable[[int], Any]] = {
            "gossamer": partial(fit_gossamer, *given, device)}
        if on_cuda:
            contenders["torch, CUDA graph"] = partial(fit_torch, *given, device)
        if on_cuda and find_spec("optax"):
            contenders["jax, scan"] = jax_fit(*given)
        if setting.batch >= 200:  # scikit-learn takes minutes for smaller batches
            contenders["scikit-learn"] = partial(fit_scikit_learn, *given)
        for contender, fit in contenders.items():
            turns = range(1 if contender == "scikit-learn" else 3)
            first, _ = timed(fit, 10)
            seconds, score = min(timed(fit, 10) for _ in turns)
            twice, _ = min(timed(fit, 20) for _ in turns)
            yield {"case": name, "samples": count, "contender": contender, "first_call_s": first,
                   "call_s": seconds, "us_a_sample": (twice - seconds) / 10 / count * 1e6,
                   "accuracy": score}


def timed(fit: Callable[[int], Callable[[], float]], epochs: int) -> tuple[float, float]:
    """Return the seconds of a call, and the accuracy on the samples."""
    start = time.perf_counter()
    score = fit(epochs)
    return time.perf_counter() - start, float(score())


def fit_gossamer(x: np.ndarray, y: np.ndarray, setting: Setting, device: str, epochs: int
                 ) -> Callable[[], float]:
    """Train an MLP; return the function that computes its accuracy."""
    network = gossamer.MLP(hidden=setting.hidden, batch=setting.batch,
                           optimiser=setting.optimiser, learning_rate=setting.rate, epochs=epochs,
                           patience=None, keep="last", device=device).fit(x, y)
    return lambda: network.score(x[:6000], y[:6000])


def fit_scikit_learn(x: np.ndarray, y: np.ndarray, setting: Setting, epochs: int
                     ) -> Callable[[], float]:
    """Train an MLPClassifier; return the function that computes its accuracy."""
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier(setting.hidden, solver=setting.optimiser, batch_size=setting.batch,
                            max_iter=epochs, n_iter_no_change=epochs + 1, momentum=0.0,
                            random_state=0, learning_rate_init=setting.rate).fit(x, y)
    return lambda: network.score(x[:6000], y[:6000])


def fit_torch(x: np.ndarray, y: np.ndarray, setting: Setting, device: str, epochs: int
              ) -> Callable[[], float]:
    """Train by PyTorch; return the function that computes the accuracy.

    The steps of a captured CUDA graph take their samples by an order on the device.
    """
    import torch
    from torch import nn

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    batch = setting.batch
    layers: list[nn.Module] = []
    for before, units in pairwise((x.shape[1], *setting.hidden, 10)):
        layers += [nn.Linear(before, units), nn.ReLU()]
    network = nn.Sequential(*layers[:-1]).to(device)
    change: Any = (
        torch.optim.Adam(network.parameters(), setting.rate, fused=True, capturable=True)
        if setting.optimiser == "adam" else
        torch.optim.SGD(network.parameters(), setting.rate, fused=True))
    loss_of = nn.CrossEntropyLoss()
    samples = torch.from_numpy(x).to(device)
    labels = torch.from_numpy(y.astype(np.int64)).to(device)
    steps_in_epoch = len(x) // batch
    steps = next(n for n in range(min(_MOST_STEPS, steps_in_epoch), 0, -1)
                 if steps_in_epoch % n == 0)
    order = torch.zeros(steps * batch, dtype=torch.int64, device=device)
    total = torch.zeros((), device=device)

    def run() -> None:
        for step in range(steps):
            rows = order[step * batch:(step + 1) * batch]
            change.zero_grad(set_to_none=True)
            loss = loss_of(network(samples[rows]), labels[rows])
            loss.backward()
            change.step()
            total.add_(loss.detach())

    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    change.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        run()
    network.load_state_dict(start)
    for state in change.state.values():
        for tensor in state.values():
            if torch.is_tensor(tensor):
                tensor.zero_()
    for _ in range(epochs):
        total.zero_()
        shuffled = torch.randperm(len(x), device=device)
        for first in range(0, steps_in_epoch * batch, steps * batch):
            order.copy_(shuffled[first:first + steps * batch])
            graph.replay()
        float(total)
    weights = [parameter.detach().cpu() for parameter in network.parameters()]
    assert all(bool(torch.isfinite(weight).all()) for weight in weights)

    def score() -> float:
        with torch.no_grad():
            return float((network(samples[:6000]).argmax(1) == labels[:6000]).float().mean())

    return score


def jax_fit(x: np.ndarray, y: np.ndarray, setting: Setting
            ) -> Callable[[int], Callable[[], float]]:
    """Return the function that trains by JAX; the compiled epoch is kept from call to call."""
    import jax
    import jax.numpy as jnp
    import optax

    batch = setting.batch
    change = getattr(optax, setting.optimiser)(setting.rate)

    def outputs(layers: Any, a: Any) -> Any:
        for index, (weight, bias) in enumerate(layers):
            a = jnp.dot(a, weight, precision=jax.lax.Precision.HIGHEST) + bias
            a = jax.nn.relu(a) if index < len(layers) - 1 else a
        return a

    def loss_of(layers: Any, a: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(outputs(layers, a), labels).mean()

    @jax.jit
    def epoch(layers: Any, state: Any, key: Any, samples: Any, labels: Any) -> Any:
        steps = len(x) // batch
        order = jax.random.permutation(key, len(x))[:steps * batch].reshape(steps, batch)

        def step(carry: Any, rows: Any) -> Any:
            layers, state = carry
            loss, gradients = jax.value_and_grad(loss_of)(layers, samples[rows], labels[rows])
            updates, state = change.update(gradients, state)
            return (optax.apply_updates(layers, updates), state), loss

        (layers, state), losses = jax.lax.scan(step, (layers, state), order)
        return layers, state, losses.mean()

    def fit(epochs: int) -> Callable[[], float]:
        rng = np.random.default_rng(0)
        layers: Any = []
        for before, units in pairwise((x.shape[1], *setting.hidden, 10)):
            bound = (6 / (before + units)) ** 0.5
            weight = rng.uniform(-bound, bound, (before, units)).astype(np.float32)
            layers.append((jnp.asarray(weight), jnp.zeros(units)))
        samples, labels = jnp.asarray(x), jnp.asarray(y.astype(np.int32))
        state, key = change.init(layers), jax.random.key(0)
        for _ in range(epochs):
            key, own = jax.random.split(key)
            layers, state, loss = epoch(layers, state, own, samples, labels)
            float(loss)
        kept = [np.asarray(array) for layer in layers for array in layer]
        assert all(np.isfinite(array).all() for array in kept)
        return lambda: float((outputs(layers, samples[:6000]).argmax(1) == labels[:6000]).mean())

    return fit


def sweeps(x: np.ndarray, y: np.ndarray, device: str, count: int, peer_count: int
           ) -> Iterator[dict[str, Any]]:
    """Yield a row for each contender of the sweep."""
    every = [Setting((width,) * layers, SWEEP_BATCH, optimiser, given_rate=rate)
             for width, layers, optimiser in product(WIDTHS, (1, 2), RATES)
             for rate in RATES[optimiser]]
    drawn = random.Random(0)
    settings = drawn.sample(every, count)
    few = drawn.sample(settings, min(peer_count, count))
    scale = (sum(setting.multiply_adds for setting in settings)
             / sum(setting.multiply_adds for setting in few))
    contenders: dict[str, Callable[[], float]] = {
        f"gossamer, {turn} call": partial(sweep_gossamer, x, y, settings, device)
        for turn in ("first", "second")}
    if device.startswith("cuda"):
        contenders["torch, CUDA graph, one after another"] = partial(
            sweep_torch, x, y, few, device)
    contenders["scikit-learn, GridSearchCV on all cores"] = partial(sweep_scikit_learn, x, y, few)
    for contender, sweep in contenders.items():
        start = time.perf_counter()
        best = sweep()
        seconds = time.perf_counter() - start
        is_own = contender.startswith("gossamer")
        yield {"case": f"{count} settings x {FOLDS} folds, {SWEEP_EPOCHS} epochs",
               "samples": len(x), "contender": contender,
               "settings": count if is_own else len(few), "measured_s": seconds,
               "s": seconds * (1 if is_own else scale), "best": best}


def sweep_gossamer(x: np.ndarray, y: np.ndarray, settings: Sequence[Setting], device: str) -> float:
    """Cross-validate settings by gossamer; return the best mean score."""
    base = gossamer.MLP(epochs=SWEEP_EPOCHS, patience=None, keep="last", batch=SWEEP_BATCH,
                        device=device)
    grids = [{"hidden": [setting.hidden], "optimiser": [setting.optimiser],
              "learning_rate": [setting.rate]} for setting in settings]
    return float(np.max(gossamer.sweep(base, grids, x, y, folds=FOLDS).scores.mean(axis=1)))


def sweep_torch(x: np.ndarray, y: np.ndarray, settings: Sequence[Setting], device: str) -> float:
    """Train settings on all folds but one, one after another; return the best mean score."""
    scores = []
    for setting in settings:
        for fold in range(FOLDS):
            kept = np.arange(len(x)) % FOLDS != fold
            scores.append(fit_torch(x[kept], y[kept], setting, device, SWEEP_EPOCHS)())
    return float(np.reshape(scores, (-1, FOLDS)).mean(axis=1).max())


def sweep_scikit_learn(x: np.ndarray, y: np.ndarray, settings: Sequence[Setting]) -> float:
    """Cross-validate settings by scikit-learn, a process for each core; return the best score."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.neural_network import MLPClassifier

    search = GridSearchCV(
        MLPClassifier(batch_size=SWEEP_BATCH, max_iter=SWEEP_EPOCHS, momentum=0.0, random_state=0,
                      n_iter_no_change=SWEEP_EPOCHS + 1),
        [{"hidden_layer_sizes": [setting.hidden], "solver": [setting.optimiser],
          "learning_rate_init": [setting.rate]} for setting in settings],
        cv=FOLDS, n_jobs=-1, refit=False).fit(x, y)
    return float(search.best_score_)


if __name__ == "__main__":
    main()
