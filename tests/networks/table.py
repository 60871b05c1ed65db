"""The networks of docs/compatibility.md: those of torchvision, timm and transformers by their
names, and modules of PyTorch, each a network of its own.

This module imports PyTorch and the libraries only where a network is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]

TORCHVISION = (
    "alexnet", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "mnasnet0_5",
    "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf",
    "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "squeezenet1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "maxvit_t",
    "lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large",
)
TIMM = (
    "bat_resnext26ts", "botnet26t_256", "cait_xxs24_224", "coat_lite_tiny", "convit_tiny",
    "convmixer_768_32", "convnext_atto", "convnextv2_atto", "crossvit_tiny_240", "cs3darknet_s",
    "davit_tiny", "deit_tiny_patch16_224", "dla34", "eca_nfnet_l0", "eca_resnet33ts",
    "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0", "efficientnet_lite0",
    "efficientvit_b0", "efficientvit_m0", "eva02_tiny_patch14_224", "fastvit_t8", "fbnetc_100",
    "fbnetv3_b", "flexivit_small", "focalnet_tiny_srf", "gcresnet33ts", "gcvit_xxtiny",
    "gernet_s", "ghostnet_050", "ghostnetv2_100", "halonet26t", "hardcorenas_a", "hgnetv2_b0",
    "hrnet_w18_small", "inception_next_atto", "lambda_resnet26t", "lcnet_050", "levit_128s",
    "mixer_s32_224", "mixnet_s", "mobilenetv3_small_050", "mobilenetv4_conv_small",
    "mobileone_s0", "mobilevit_xxs", "mobilevitv2_050", "mvitv2_tiny", "nest_tiny",
    "nextvit_small", "pit_ti_224", "poolformer_s12", "pvt_v2_b0", "regnetx_002",
    "repghostnet_050", "repvgg_a0", "repvit_m0_9", "res2net50_14w_8s", "resmlp_12_224",
    "resnest14d", "rexnet_100", "selecsls42", "sequencer2d_s", "seresnext26t_32x4d",
    "skresnet18", "spnasnet_100", "starnet_s1", "swiftformer_xs", "tiny_vit_5m_224",
    "tinynet_e", "tnt_s_patch16_224", "twins_svt_small", "vit_tiny_patch16_224", "volo_d1_224",
    "xcit_nano_12_p16_224",
)
_TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 37, "max_position_embeddings": 64}
_PICTURES = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 4, "intermediate_size": 37}
TRANSFORMERS: dict[str, tuple[dict[str, Any], Shape]] = {
    "Albert": ({**_TEXT, "embedding_size": 16}, (16,)),
    "Bert": (_TEXT, (16,)),
    "ConvNext": ({"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}, (3, 64, 64)),
    "DistilBert": ({"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37,
                    "max_position_embeddings": 64}, (16,)),
    "Electra": ({**_TEXT, "embedding_size": 16}, (16,)),
    "GPT2": ({"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
              "use_cache": False}, (16,)),
    "Llama": ({**_TEXT, "num_key_value_heads": 2, "use_cache": False}, (16,)),
    "MPNet": (_TEXT, (16,)),
    "Mistral": ({**_TEXT, "num_key_value_heads": 2, "use_cache": False}, (16,)),
    "MobileViT": ({"hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 64],
                   "image_size": 64, "initializer_range": 0.5}, (3, 64, 64)),
    "Qwen2": ({**_TEXT, "num_key_value_heads": 2, "use_cache": False}, (16,)),
    "Roberta": (_TEXT, (16,)),
    "Segformer": ({"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1],
                   "num_attention_heads": [1, 2, 4, 8]}, (3, 64, 64)),
    "ViT": (_PICTURES, (3, 32, 32)),
}
"""For each family its configuration and the shape of an input without the batch; one of rank 1
holds numbers of words."""


@dataclass(frozen=True)
class Network:
    """A network to export.

    library: "torchvision", "timm", "transformers" or "module". make: returns the PyTorch module and
    the shapes of its inputs without the batch. words: whether its input is numbers of words.
    """

    library: str
    name: str
    make: Callable[[], tuple[Any, list[Shape]]]
    words: bool = False


def networks() -> list[Network]:
    """Returns all networks, the small ones first."""
    from tests.networks.modules import MODULES

    return [*(Network("module", name, lambda make=make, shapes=shapes: (make(), list(shapes)))
              for name, (make, *shapes) in MODULES.items()),
            *(Network("transformers", name, lambda name=name: _of_transformers(name),
                      len(shape) == 1) for name, (_, shape) in TRANSFORMERS.items()),
            *(Network("torchvision", name, lambda name=name: _of_torchvision(name))
              for name in TORCHVISION),
            *(Network("timm", name, lambda name=name: _of_timm(name)) for name in TIMM)]


def _of_torchvision(name: str) -> tuple[Any, list[Shape]]:
    import torch
    import torchvision

    options: dict[str, Any] = {"weights": None}
    if name in ("googlenet",):
        options.update(aux_logits=False, init_weights=False)
    if name in torchvision.models.list_models(torchvision.models.segmentation):
        class Scores(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.network = torchvision.models.get_model(name, weights=None,
                                                            weights_backbone=None)

            def forward(self, x: Any) -> Any:
                return self.network(x)["out"]

        return Scores(), [(3, 64, 64)]
    return torchvision.models.get_model(name, **options), [(3, 224, 224)]


def _of_timm(name: str) -> tuple[Any, list[Shape]]:
    import timm

    module = timm.create_model(name)
    return module, [tuple(module.default_cfg["input_size"])]


def _of_transformers(name: str) -> tuple[Any, list[Shape]]:
    import torch
    import transformers

    config, shape = TRANSFORMERS[name]

    class LastHidden(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = getattr(transformers, f"{name}Model")(
                getattr(transformers, f"{name}Config")(**config))

        def forward(self, x: Any) -> Any:
            return self.network(x, return_dict=False)[0]

    return LastHidden(), [shape]
