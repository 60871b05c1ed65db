"""Classifies a photo: python examples/classify.py cat.png [device]"""

import sys
from typing import NoReturn

import gossamer
from gossamer.io.images import PRESETS, load_image
from gossamer.io.labels.reader import class_names
from gossamer.model.outputs import best_classes


def fail(message: object) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    if len(sys.argv) < 2:
        fail(f"no photo given: {__doc__}")
    photo, *device = sys.argv[1:]
    x = PRESETS["imagenet"].pixel_batch([load_image(photo)])
    plan = gossamer.compile("mobilenet_v2", device=device[0] if device else None, inputs="photos")
    (scores,) = plan(x)
    for line in best_classes(scores, 5, class_names(None, len(scores))):
        print(f"{line['probability']:7.2%}  {line['name']}")
    print(f"on {plan.device.name}: {plan.device.description}")


if __name__ == "__main__":
    try:
        main()
    except gossamer.GossamerError as error:
        fail(error)
