"""Small data to train on, and the command line that learns them."""

import numpy as np

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
X = (np.eye(3).repeat(3, axis=1)[LABELS] + 0.2 * RNG.standard_normal((60, 9))).astype(np.float32)
PICTURES = (RNG.random((60, 8, 8)) * 100 + 150 * (
    np.arange(64).reshape(8, 8) % 3 == LABELS[:, None, None])).astype(np.uint8)


def save_csv(path, labels, x=X):
    lines = [",".join(map(str, [label, *row])) for label, row in zip(labels, x.tolist(),
                                                                     strict=False)]
    path.write_text("\n".join(lines) + "\n")
    return path


def train(source, model, *words, sizes="9,6,3"):
    """Return the words of a command line that trains a small network."""
    return ("train", source, "--sizes", sizes, "--published", "--lr", "1", "--epochs", "4",
            "--device", "host",
            "-o", model, *words)
