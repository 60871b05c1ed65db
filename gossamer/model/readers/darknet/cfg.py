"""Parses .cfg files into sections with options and their line numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gossamer.errors import ModelError, UnsupportedError, closest
from gossamer.io.limits import whole
from gossamer.model.readers.other_kinds import by_content

_LARGEST = 2**31 - 1
"""The largest integer that Darknet reads."""


@dataclass(frozen=True)
class Option:
    """The text of an option of a section, and the option's line in the file, counted from 1."""

    text: str
    line: int


@dataclass
class Section:
    """A section of a .cfg file.

    file: path of the file.
    kind: name of the section without brackets, such as "convolutional".
    line: line of the file where the section begins, counted from 1.
    index: number of the section as Darknet counts layers, from 0; the section [net] has -1.
    options: options of the section by key.
    """

    file: Path
    kind: str
    line: int
    index: int
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The text by which messages name the section."""
        return f"layer {self.index} [{self.kind}], line {self.line}"

    def text(self, key: str, default: str = "") -> str:
        return self.options[key].text if key in self.options else default

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return the integer of an option.

        Raises ModelError if the option is not an integer from `least` to 2^31 - 1, or is absent
        without a default.
        """
        if key not in self.options and default is not None:
            return default
        text = self._required(key)
        if not re.fullmatch(r"[+-]?\d{1,15}", text) or not least <= int(text) <= _LARGEST:
            raise self.error(f"{key} is {text!r}, expected a whole number from {least} to "
                             f"{_LARGEST}", key)
        return int(text)

    def flag(self, key: str) -> bool:
        """Return whether an option is set to a number other than 0."""
        return self.integer(key, 0, least=-_LARGEST) != 0

    def number(self, key: str, default: float, low: float = -math.inf,
               high: float = math.inf) -> float:
        """Return the number of an option.

        Raises ModelError if the option is not one number from `low` to `high`.
        """
        if key not in self.options:
            return default
        (number, *more) = self.numbers(key)
        if more:
            raise self.error(f"{key} is {self.text(key)!r}, expected one number", key)
        if not low <= number <= high:
            raise self.error(f"{key} is {self.text(key)!r}, expected a number from {low:g} to "
                             f"{high:g}", key)
        return number

    def numbers(self, key: str) -> list[float]:
        """Return the comma-separated numbers of an option; an empty list if the option is absent.

        Raises ModelError unless all entries are finite numbers.
        """
        parts = [part for part in self.text(key).split(",") if part.strip()]
        if not all(re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", part.strip(), re.I)
                   and len(part) < 40 for part in parts) or (key in self.options and not parts):
            raise self.error(f"{key} is {self.text(key)!r}, expected numbers like 10, 13.5", key)
        return [float(part) for part in parts]

    def integers(self, key: str) -> list[int]:
        """Return the comma-separated integers of an option; an empty list if the option is absent.

        Raises ModelError unless all entries are integers.
        """
        numbers = self.numbers(key)
        if not all(number.is_integer() and abs(number) <= _LARGEST for number in numbers):
            raise self.error(f"{key} is {self.text(key)!r}, expected whole numbers", key)
        return [int(number) for number in numbers]

    def refuse(self, *keys: str) -> None:
        """Raise UnsupportedError if one of the options is set to a number other than 0."""
        for key in keys:
            if self.number(key, 0) != 0:
                raise self.unsupported(f"{key}={self.text(key)} is not computed", key)

    def error(self, text: str, key: str = "") -> ModelError:
        """Return an error that names the line of an option.

        If the section does not have the option, the error names the line of the section.
        """
        return ModelError(self._message(text, key))

    def unsupported(self, text: str, key: str = "") -> UnsupportedError:
        """Return an error about a section or option that gossamer does not support."""
        return UnsupportedError(self._message(text, key))

    def _message(self, text: str, key: str) -> str:
        line = self.options[key].line if key in self.options else self.line
        return f"{self.file}: line {line}: [{self.kind}] {text}"

    def _required(self, key: str) -> str:
        if key not in self.options:
            raise self.error(f"lacks {key}=...")
        return self.options[key].text


def read_sections(path: Path) -> list[Section]:
    """Return the sections of a .cfg file in order, [net] first.

    Raises InputError if the file cannot be read, ModelError if it is not a .cfg file or a line is
    neither a section nor an option, and UnsupportedError for a section that gossamer does not
    compute.
    """
    data = whole(path)
    if (other_kind := by_content(data)) is not None:
        raise ModelError(f"{path}: {other_kind}")
    if b"\0" in data:
        raise ModelError(f"{path}: is no text, expected sections like [net]")
    sections: list[Section] = []
    # comments may be in any encoding; sections and options are ASCII
    lines = data.decode("utf-8-sig", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        line = re.split("[#;]", line, maxsplit=1)[0].strip()
        if line.startswith("["):
            sections.append(_section(path, line, number, len(sections) - 1))
        elif line:
            key, equals, text = line.partition("=")
            if not equals or not sections:
                raise ModelError(f"{path}: line {number}: {line[:40]!r} is not expected here; "
                                 f"expected {'key=value or ' if sections else ''}a section like "
                                 f"{'[convolutional]' if sections else '[net]'}")
            # Darknet uses the first of equal keys, and ignores blanks within keys and values
            sections[-1].options.setdefault("".join(key.split()),
                                            Option("".join(text.split()), number))
    if not sections or sections[0].kind != "net":
        raise ModelError(f"{path}: does not begin with the section [net]; is it a .cfg file of "
                         "Darknet?")
    if len(sections) == 1:
        raise ModelError(f"{path}: has no layers after the section [net]")
    return sections


def unknown_keys(sections: Sequence[Section]) -> list[str]:
    """Return a list with one warning that names all options unknown to Darknet.

    The list is empty if Darknet knows all options.
    """
    unknown = [f"{key!r} of [{section.kind}] (line {option.line})"
               + _do_you_mean(key, KEYS[section.kind]) for section in sections
               for key, option in section.options.items()
               if key not in KEYS[section.kind] and key not in COMMON]
    if not unknown:
        return []
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    return [f"{sections[0].file}: unknown keys are ignored: {', '.join(unknown[:5])}{more}"]


def _do_you_mean(key: str, keys: Iterable[str]) -> str:
    """Return text that asks whether a similar key is meant; empty if no key is similar."""
    close = closest(key, keys, 1, 0.8)
    return f", do you mean {close[0]!r}?" if close else ""


def _section(path: Path, line: str, number: int, index: int) -> Section:
    """Return a section without options.

    Raises UnsupportedError for a section of unknown name, and ModelError for a second [net].
    """
    name = line[1:].split("]")[0].strip()
    kind = SHORT_NAMES.get(name, name)
    if line.endswith("]") and name in NOT_COMPUTED:
        raise UnsupportedError(f"{path}: line {number}: [{name}] is a section of Darknet that "
                               f"gossamer does not compute; it computes {', '.join(sorted(KEYS))}")
    if not line.endswith("]") or kind not in KEYS:
        close = closest(name, KEYS, 1, 0.6)
        hint = f"do you mean [{close[0]}]?" if close else f"it knows {', '.join(sorted(KEYS))}"
        raise UnsupportedError(f"{path}: line {number}: gossamer does not know the section "
                               f"{line[:40]}; {hint}")
    if kind == "net" and index >= 0:
        raise ModelError(f"{path}: line {number}: a second section [net]")
    return Section(path, kind, number, index)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHORT_NAMES = {"network": "net", "conv": "convolutional", "conn": "connected", "max": "maxpool",
               "avg": "avgpool", "local_avg": "local_avgpool", "soft": "softmax"}
"""Alternative names of sections, each with the usual name of the section."""

NOT_COMPUTED = _words("""
    contrastive conv_lstm crnn deconv deconvolutional detection Gaussian_yolo gru history implicit
    iseg l2norm local logistic lrn lstm normalization rnn""")
"""Sections of Darknet that gossamer does not support."""

COMMON = _words("""
    burnin_update clip dont_update dontload dontloadscales dynamic_minibatch keep_delta_gpu
    learning_rate learning_scale numload onlyforward smooth stopbackward stream train_only_bn truth
    wait_stream""")
"""Options of every section."""

_CONVOLUTION = """
    activation angle antialiasing assisted_excitation batch_normalize bin_output binary cbn
    coordconv dilation dot filters flipped grad_centr groups pad padding reverse rotate
    share_index size stretch stretch_sway stride stride_x stride_y sway xnor"""
_WINDOW = """
    antialiasing maxpool_depth maxpool_zero_nonmax out_channels padding size stride stride_x
    stride_y"""
_BOXES = """
    absolute anchors bias_match classes coords focal_loss jitter log map max max_boxes num random
    rescore resize sqrt thresh"""

KEYS: dict[str, frozenset[str]] = {kind: _words(keys) for kind, keys in {
    "net": """
        B1 B2 adam adversarial_lr angle aspect attention augment_speed
        badlabels_reject_threshold badlabels_rejection_percentage batch batches_cycle_mult
        batches_per_cycle blur burn_in center channels clip contrastive contrastive_color
        contrastive_jit_flip cutmix decay ema_alpha eps equidistant_point exposure flip gamma
        gaussian_noise height hue init_sequential_subdivisions inputs label_smooth_eps
        learning_rate learning_rate_min letter_box loss_scale max_batches max_chart_loss
        max_crop min_crop mixup momentum mosaic mosaic_bound notruth num_sigmas_reject_badlabels
        optimized_memory policy power random resize_step saturation scale scales seq_scales
        sequential_subdivisions sgdr_cycle sgdr_mult show_receptive_field step steps
        subdivisions time_steps track try_fix_nan unsupervised use_cuda_graph
        weights_reject_freq width workspace_size_limit_MB""",
    "convolutional": _CONVOLUTION,
    "connected": "activation batch_normalize output",
    "maxpool": _WINDOW,
    "local_avgpool": _WINDOW,
    "avgpool": "",
    "upsample": "reverse scale stride",
    "reorg": "extra flatten reverse stride",
    "reorg3d": "reverse stride",
    "route": "group_id groups layers",
    "shortcut": "activation alpha beta from weights_normalization weights_normalizion weights_type",
    "scale_channels": "activation from scale_wh",
    "sam": "activation from",
    "dropout": "dropblock dropblock_size_abs dropblock_size_rel probability",
    "softmax": "groups noloss spatial temperature tree",
    "empty": "",
    "silence": "",
    "activation": "activation",
    "batchnorm": "",
    "cost": "ratio scale type",
    "crop": "angle crop_height crop_width exposure flip noadjust saturation shift",
    "region": f"""{_BOXES}
        background class_scale classfix coord_scale extra mask_scale noobject_scale object_scale
        softmax tree""",
    "yolo": f"""{_BOXES}
        beta_nms cls_normalizer counters_per_class delta_normalizer dets_for_show dets_for_track
        embedding_layer ignore_thresh iou_loss iou_normalizer iou_thresh iou_thresh_kind
        label_smooth_eps mask max_delta new_coords nms_kind obj_normalizer objectness_smooth
        scale_x_y show_details sim_thresh track_ciou_norm track_history_size truth_thresh
        uc_normalizer""",
}.items()}
"""The options of each section, in addition to those in COMMON."""

ALEXEYAB_ONLY = _words("""
    antialiasing beta_nms cls_normalizer counters_per_class cutmix group_id iou_loss
    iou_normalizer iou_thresh_kind label_smooth_eps letter_box max_delta mixup mosaic new_coords
    nms_kind obj_normalizer objectness_smooth optimized_memory scale_x_y stride_x stride_y
    workspace_size_limit_MB""")
"""Options that exist only in AlexeyAB's fork, and thus identify a network made for this fork."""
