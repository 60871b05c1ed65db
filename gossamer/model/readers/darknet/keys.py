"""Lists the names of sections and options that Darknet and AlexeyAB's fork of Darknet know.

Most options concern training. The user is warned of an option that is in no table; a section that
is in no table is an error.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHORT_NAMES = {"network": "net", "conv": "convolutional", "conn": "connected", "max": "maxpool",
               "avg": "avgpool", "local_avg": "local_avgpool", "soft": "softmax"}
"""Alternative names of sections, each with the usual name of the section."""

NOT_COMPUTED = _words("""
    contrastive conv_lstm crnn deconv deconvolutional detection Gaussian_yolo gru history implicit
    iseg l2norm local logistic lrn lstm normalization rnn""")
"""Sections of Darknet that gossamer does not compute."""

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
"""The options of each section, beside the options in COMMON."""

ALEXEYAB_ONLY = _words("""
    antialiasing beta_nms cls_normalizer counters_per_class cutmix group_id iou_loss
    iou_normalizer iou_thresh_kind label_smooth_eps letter_box max_delta mixup mosaic new_coords
    nms_kind obj_normalizer objectness_smooth optimized_memory scale_x_y stride_x stride_y
    workspace_size_limit_MB""")
"""Options that only AlexeyAB's fork has, by which a network for this fork is recognised."""
