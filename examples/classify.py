"""Names what a photo shows: python examples/classify.py cat.png [device]"""

import sys
from typing import NoReturn

import numpy as np

import gossamer
from gossamer.cli.show import labels
from gossamer.io.images import PRESETS, load_image


def fail(message: object) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    if len(sys.argv) < 2:
        fail(f"no photo given: {__doc__}")
    photo, *device = sys.argv[1:]
    x = PRESETS["imagenet"].batch([load_image(photo)])
    plan = gossamer.compile("mobilenet_v2", device=device[0] if device else None)
    (scores,) = plan(x)
    names = labels(None, len(scores)) or []
    powers = np.exp(scores - scores.max())
    for index in np.argsort(-scores)[:5]:
        print(f"{powers[index] / powers.sum():7.2%}  {names[index]}")
    print(f"on {plan.device.name}: {plan.device.description}")


if __name__ == "__main__":
    try:
        main()
    except gossamer.GossamerError as error:
        fail(error)
