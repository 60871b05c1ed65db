"""Trains gossamer.MLP and scikit-learn's networks side by side on the host, and prints a row each.

    python benchmarks/beside_scikit_learn.py [-o ROWS.jsonl]

Three questions are asked of scikit-learn's small data sets: how good the defaults are on digits
(accuracy on a held-out quarter, seeds 0 to 4), how good they are on diabetes (R^2), and how long
training on digits takes at several batch sizes. For the times both have the same hidden layer,
optimiser, learning rate and number of epochs; each is the best of several turns, taken in turn, in
this process, and scikit-learn's once more with one BLAS thread, where it is often faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import gossamer

SEEDS = range(5)
SPEED = ((1, 5), (32, 50), (200, 200))
"""Batch sizes, and the number of epochs at each."""
TURNS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", metavar="ROWS.jsonl", type=Path, help="also write the rows here")
    path = parser.parse_args().o
    warnings.simplefilter("ignore")  # scikit-learn warns where its epochs do not suffice
    rows = [*defaults("digits", load_digits, MLPClassifier, stratified=True),
            *defaults("diabetes", load_diabetes, MLPRegressor, stratified=False), *speed()]
    for row in rows:
        print(json.dumps(row))
    if path:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def defaults(name: str, load: Callable[..., Any], peer: type, stratified: bool) -> list[dict]:
    """Returns the scores of networks with default settings on a held-out quarter of the data, as
    they are and with standardised columns."""
    x, y = load(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=0,
                                            stratify=y if stratified else None)
    scaler = StandardScaler().fit(x)
    rows = []
    for prepared in (False, True):
        data = (scaler.transform(x), scaler.transform(x_test)) if prepared else (x, x_test)
        for contender, make in (
                ("scikit-learn", lambda seed: peer(random_state=seed)),
                ("gossamer", lambda seed: gossamer.MLP(seed=seed, device="host"))):
            scores = [make(seed).fit(data[0], y).score(data[1], y_test) for seed in SEEDS]
            rows.append({"case": f"defaults/{name}" + ("/standardised" if prepared else ""),
                         "contender": contender, "median": statistics.median(scores),
                         "scores": scores})
    return rows


def speed() -> list[dict]:
    """Returns the best times of training on digits, and the scores on the held-out quarter."""
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)
    rows = []
    for batch, epochs in SPEED:
        contenders: dict[str, tuple[Callable[[], Any], Any]] = {
            "scikit-learn": (lambda batch=batch, epochs=epochs: MLPClassifier(
                batch_size=batch, max_iter=epochs, n_iter_no_change=epochs, random_state=0),
                nullcontext),
            "scikit-learn, one thread": (lambda batch=batch, epochs=epochs: MLPClassifier(
                batch_size=batch, max_iter=epochs, n_iter_no_change=epochs, random_state=0),
                lambda: threadpool_limits(1)),
            "gossamer": (lambda batch=batch, epochs=epochs: gossamer.MLP(
                batch=batch, epochs=epochs, patience=None, device="host"), nullcontext)}
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        scores: dict[str, float] = {}
        for _ in range(TURNS):
            for name, (make, limited) in contenders.items():
                with limited():
                    start = time.perf_counter()
                    network = make().fit(x, y)
                    seconds[name].append(time.perf_counter() - start)
                scores[name] = float(np.round(network.score(x_test, y_test), 4))
        rows += [{"case": f"speed/digits/batch {batch}", "contender": name, "epochs": epochs,
                  "seconds": round(min(seconds[name]), 4), "score": scores[name]}
                 for name in contenders]
    return rows


if __name__ == "__main__":
    main()
