"""Small networks with the layers and joints of those that people publish, as texts of .cfg."""

from __future__ import annotations

ANCHORS = "anchors = 10,14,  23,27,  37,58,  81,82,  135,169,  344,319"


def section(kind: str, **options: object) -> str:
    lines = [f"{key.rstrip('_')}={value}\n" for key, value in options.items()]
    return f"[{kind}]\n{''.join(lines)}"


def net(width: int = 32, height: int = 32, channels: int = 3, **options: object) -> str:
    return section("net", batch=64, width=width, height=height, channels=channels, **options)


def conv(filters: int, size: int = 3, stride: int = 1, activation: str = "leaky",
         **options: object) -> str:
    return section("convolutional", batch_normalize=1, filters=filters, size=size, stride=stride,
                   pad=1, activation=activation, **options)


def head(classes: int, mask: str = "0,1,2", activation: str = "linear", **options: object) -> str:
    filters = (mask.count(",") + 1) * (5 + classes)
    return section("convolutional", size=1, stride=1, pad=1, filters=filters,
                   activation=activation) + (
        f"[yolo]\nmask = {mask}\n{ANCHORS}\nclasses={classes}\nnum=6\njitter=.3\n"
        + "".join(f"{key} = {value}\n" for key, value in options.items()))


def yolov3_tiny() -> str:
    """Max pools of stride 1, a route back, upsampling, and two heads."""
    return (net(64, 32) + conv(4) + section("maxpool", size=2, stride=2) + conv(6)
            + section("maxpool", size=2, stride=2) + conv(8) + section("maxpool", size=2, stride=1)
            + conv(8) + section("maxpool", size=2, stride=2) + conv(6, 1) + head(2, "3,4,5")
            + section("route", layers="-4") + conv(4, 1) + section("upsample", stride=2)
            + section("route", layers="-1, 4") + conv(6) + head(2, "0,1,2"))


def yolov3_spp() -> str:
    """Residual blocks as in Darknet-53, and pools of three sizes side by side."""
    pools = "".join(section("maxpool", size=size, stride=1) + section("route", layers=back)
                    for size, back in ((5, "-2"), (9, "-4")))
    return (net(32, 48) + conv(4) + conv(8, 3, 2) + conv(4, 1) + conv(8)
            + section("shortcut", from_="-3", activation="linear") + conv(8, 3, 2) + conv(6, 1)
            + pools + section("maxpool", size=13, stride=1)
            + section("route", layers="-1,-3,-5,-6") + conv(6, 1) + head(3))


def yolov4() -> str:
    """A cross-stage block with mish."""
    return (net(48, 32, mosaic=1) + conv(4, activation="mish") + conv(8, 3, 2, "mish")
            + conv(8, 1, 1, "mish") + section("route", layers="-2") + conv(8, 1, 1, "mish")
            + conv(4, 1, 1, "mish") + conv(8, 3, 1, "mish")
            + section("shortcut", from_="-3", activation="linear") + conv(8, 1, 1, "mish")
            + section("route", layers="-1, -7") + conv(8, 1, 1, "mish") + conv(6, 3, 2)
            + head(2, "3,4,5", scale_x_y=1.05, iou_loss="ciou", nms_kind="greedynms", beta_nms=0.6))


def yolov4_tiny() -> str:
    """A cross-stage block by groups of a route."""
    return (net() + conv(4, 3, 2) + conv(8) + section("route", layers=-1, groups=2, group_id=1)
            + conv(4) + conv(4) + section("route", layers="-1,-2") + conv(8, 1)
            + section("route", layers="-6,-1") + section("maxpool", size=2, stride=2) + conv(8)
            + head(2, "3,4,5", scale_x_y=1.05, nms_kind="greedynms"))


def yolov4_csp() -> str:
    """Heads whose convolution computes the sigmoids."""
    return (net() + conv(4, activation="swish") + conv(8, 3, 2, "swish")
            + head(2, "0,1,2", "logistic", new_coords=1, scale_x_y=2.0, nms_kind="diounms",
                   beta_nms=0.6))


def yolov7_tiny() -> str:
    """Blocks of five routes, and pools of three sizes of one layer."""
    return (net() + conv(4, 3, 2) + conv(4, 1) + section("route", layers="-2") + conv(4, 1)
            + conv(4) + conv(4) + section("route", layers="-1,-2,-3,-5") + conv(8, 1)
            + section("maxpool", size=2, stride=2) + conv(8, 1)
            + section("maxpool", size=5, stride=1) + section("route", layers="-2")
            + section("maxpool", size=9, stride=1) + section("route", layers="-1,-3,-4")
            + conv(8, 1) + head(2, "0,1,2", "logistic", new_coords=1, scale_x_y=2.0,
                                nms_kind="greedynms"))


def yolov2() -> str:
    """A route through reorg, and a region head."""
    return (net(32, 64) + conv(4) + section("maxpool", size=2, stride=2) + conv(8) + conv(8, 3, 2)
            + section("route", layers="-2") + conv(4, 1) + section("reorg", stride=2)
            + section("route", layers="-1,-4") + conv(8)
            + section("convolutional", size=1, stride=1, pad=1, filters=14, activation="linear")
            + "[region]\nanchors = 0.57273, 0.677385, 1.87446, 2.06253\nbias_match=1\nclasses=2\n"
              "coords=4\nnum=2\nsoftmax=1\nrescore=0\nthresh = .6\nrandom=0\n")


def darknet19() -> str:
    """A classifier that ends at softmax."""
    return (net() + conv(8) + section("maxpool", size=2, stride=2) + conv(8) + conv(6, 1)
            + section("convolutional", filters=10, size=1, stride=1, pad=1, activation="linear")
            + section("avgpool") + section("softmax", groups=1) + section("cost", type="sse"))


def darknet53() -> str:
    return (net(40, 24) + conv(4) + conv(8, 3, 2) + conv(4, 1) + conv(8)
            + section("shortcut", from_="-3", activation="linear") + section("avgpool")
            + section("convolutional", filters=7, size=1, stride=1, pad=1, activation="linear")
            + section("softmax", groups=1))


NETWORKS = {make.__name__: make() for make in (
    yolov3_tiny, yolov3_spp, yolov4, yolov4_tiny, yolov4_csp, yolov7_tiny, yolov2, darknet19,
    darknet53)}
