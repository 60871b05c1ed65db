"""Tables of the published layer shapes of well-known networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gossamer.model.zoo import INVERTED_RESIDUALS

POINTWISE = "pointwise-layers"
"""Name of the suite of pointwise_convolutions()."""


@dataclass(frozen=True)
class ConvLayer:
    """A square convolution of a square image, followed by bias and ReLU."""

    name: str
    channels: int
    size: int
    out_channels: int
    kernel: int
    stride: int = 1
    pad: int = 0
    groups: int = 1

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.out_channels, self.channels // self.groups, self.kernel, self.kernel)

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class LinearLayer:
    """A fully connected layer.

    rows: number of rows of the input; None for the batch size.
    """

    name: str
    depth: int
    columns: int
    bias: bool = True
    relu: bool = False
    rows: int | None = None


@dataclass(frozen=True)
class InvertedResidual:
    """An inverted residual block of a square image.

    hidden: number of channels between the two 1x1 convolutions of the block. A block whose hidden
    channels are no more than its input channels has no first 1x1 convolution.
    """

    name: str
    channels: int
    size: int
    hidden: int
    out_channels: int
    stride: int

    @property
    def out_size(self) -> int:
        return self.size // self.stride


def distinct_convolutions() -> list[ConvLayer]:
    """Returns the convolutions of ResNet-50, GoogLeNet (without the auxiliary classifiers) and
    CaffeNet, each shape once and named after the first layer that has it."""
    return _distinct((*resnet50(), *googlenet(), *CAFFENET))


def pointwise_convolutions() -> list[ConvLayer]:
    """Returns the 1x1 convolutions of MobileNetV2 and ResNet-50, each shape once. A shape of
    ResNet-50 is named after the first layer that has it."""
    return _distinct(layer for layer in (*_mobilenet_v2_pointwise(), *resnet50())
                     if layer.kernel == 1)


def _distinct(of: Iterable[ConvLayer]) -> list[ConvLayer]:
    layers: dict[object, ConvLayer] = {}
    for layer in of:
        layers.setdefault((layer.channels, layer.size, layer.out_channels, layer.kernel,
                           layer.stride, layer.pad, layer.groups), layer)
    return list(layers.values())


def mobilenet_v2_blocks() -> Iterator[InvertedResidual]:
    """Yields the 17 inverted residual blocks of MobileNetV2 at width 1 on images of 224x224. Only
    the first block does not expand its channels.

    Mark Sandler, Andrew Howard, Menglong Zhu, Andrey Zhmoginov and Liang-Chieh Chen: MobileNetV2:
    Inverted Residuals and Linear Bottlenecks. CVPR 2018.
    """
    number, channels, size = 1, 32, 112
    for expansion, out_channels, blocks, first_stride in INVERTED_RESIDUALS:
        for index in range(blocks):
            block = InvertedResidual(f"mobilenetv2/block{number}", channels, size,
                                     expansion * channels, out_channels,
                                     1 if index else first_stride)
            yield block
            number, channels, size = number + 1, out_channels, block.out_size


def _mobilenet_v2_pointwise() -> Iterator[ConvLayer]:
    """Yields the 1x1 convolutions of MobileNetV2."""
    def layer(channels: int, size: int, out_channels: int) -> ConvLayer:
        return ConvLayer(f"mobilenetv2/{channels}x{size}x{size}-{out_channels}", channels, size,
                         out_channels, 1)

    for block in mobilenet_v2_blocks():
        if block.hidden > block.channels:
            yield layer(block.channels, block.size, block.hidden)
        yield layer(block.hidden, block.out_size, block.out_channels)
    yield layer(320, 7, 1280)


def resnet50(halving: int = 1) -> Iterator[ConvLayer]:
    """Yields the convolutions of ResNet-50.

    halving: kernel size of the convolution that has stride 2 in the first block of a stage. With 1,
    the block's first 1x1 convolution has stride 2. With 3, the block's 3x3 convolution has stride
    2, as in later versions of the network. The convolution of the shortcut has stride 2 in both
    cases.

    Kaiming He, Xiangyu Zhang, Shaoqing Ren and Jian Sun: Deep Residual Learning for Image
    Recognition. CVPR 2016.
    """
    yield ConvLayer("resnet50/conv1", 3, 224, 64, 7, 2, 3)
    channels, size = 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for block in range(blocks):
            name = f"resnet50/res{stage}{'abcdef'[block]}_branch"
            stride = 2 if block == 0 and stage > 2 else 1
            out_size = size // stride
            first, second = (stride, 1) if halving == 1 else (1, stride)
            if block == 0:
                yield ConvLayer(f"{name}1", channels, size, 4 * width, 1, stride)
            yield ConvLayer(f"{name}2a", channels, size, width, 1, first)
            yield ConvLayer(f"{name}2b", width, size // first, width, 3, second, 1)
            yield ConvLayer(f"{name}2c", width, out_size, 4 * width, 1)
            channels, size = 4 * width, out_size


INCEPTIONS = (
    # name, input channels, image size; output channels of 1x1, 3x3_reduce, 3x3, 5x5_reduce, 5x5
    # and pool_proj
    ("3a", 192, 28, 64, 96, 128, 16, 32, 32),
    ("3b", 256, 28, 128, 128, 192, 32, 96, 64),
    ("4a", 480, 14, 192, 96, 208, 16, 48, 64),
    ("4b", 512, 14, 160, 112, 224, 24, 64, 64),
    ("4c", 512, 14, 128, 128, 256, 24, 64, 64),
    ("4d", 512, 14, 112, 144, 288, 32, 64, 64),
    ("4e", 528, 14, 256, 160, 320, 32, 128, 128),
    ("5a", 832, 7, 256, 160, 320, 32, 128, 128),
    ("5b", 832, 7, 384, 192, 384, 48, 128, 128),
)


def googlenet() -> Iterator[ConvLayer]:
    """Yields the convolutions of GoogLeNet without the auxiliary classifiers.

    Christian Szegedy, Wei Liu, Yangqing Jia, Pierre Sermanet, Scott Reed, Dragomir Anguelov,
    Dumitru Erhan, Vincent Vanhoucke and Andrew Rabinovich: Going Deeper with Convolutions. CVPR
    2015.
    """
    yield ConvLayer("googlenet/conv1/7x7_s2", 3, 224, 64, 7, 2, 3)
    yield ConvLayer("googlenet/conv2/3x3_reduce", 64, 56, 64, 1)
    yield ConvLayer("googlenet/conv2/3x3", 64, 56, 192, 3, 1, 1)
    for module, channels, size, one, reduce3, three, reduce5, five, pool in INCEPTIONS:
        name = f"googlenet/inception_{module}"
        yield ConvLayer(f"{name}/1x1", channels, size, one, 1)
        yield ConvLayer(f"{name}/3x3_reduce", channels, size, reduce3, 1)
        yield ConvLayer(f"{name}/3x3", reduce3, size, three, 3, 1, 1)
        yield ConvLayer(f"{name}/5x5_reduce", channels, size, reduce5, 1)
        yield ConvLayer(f"{name}/5x5", reduce5, size, five, 5, 1, 2)
        yield ConvLayer(f"{name}/pool_proj", channels, size, pool, 1)


CAFFENET = (
    # AlexNet on one GPU, as in Caffe's reference model. Alex Krizhevsky, Ilya Sutskever and
    # Geoffrey Hinton: ImageNet Classification with Deep Convolutional Neural Networks. NIPS 2012
    ConvLayer("caffenet/conv1", 3, 227, 96, 11, 4),
    ConvLayer("caffenet/conv2", 96, 27, 256, 5, 1, 2, 2),
    ConvLayer("caffenet/conv3", 256, 13, 384, 3, 1, 1),
    ConvLayer("caffenet/conv4", 384, 13, 384, 3, 1, 1, 2),
    ConvLayer("caffenet/conv5", 384, 13, 256, 3, 1, 1, 2),
)

_YOLOS = (
    # network; input channels, image size, output channels, kernel and stride of each shape. Alexey
    # Bochkovskiy, Chien-Yao Wang and Hong-Yuan Mark Liao: YOLOv4. arXiv 2004.10934, 2020. Joseph
    # Redmon and Ali Farhadi: YOLO9000. CVPR 2017
    ("yolov4-tiny", (
        (3, 416, 32, 3, 2), (32, 208, 64, 3, 2), (64, 104, 64, 3, 1), (32, 104, 32, 3, 1),
        (64, 104, 64, 1, 1), (128, 52, 128, 3, 1), (64, 52, 64, 3, 1), (128, 52, 128, 1, 1),
        (256, 26, 256, 3, 1), (128, 26, 128, 3, 1), (256, 26, 256, 1, 1), (512, 13, 512, 3, 1),
        (512, 13, 256, 1, 1), (256, 13, 512, 3, 1), (512, 13, 255, 1, 1), (256, 13, 128, 1, 1),
        (384, 26, 256, 3, 1), (256, 26, 255, 1, 1))),
    ("yolov2-tiny", (
        (3, 416, 16, 3, 1), (16, 208, 32, 3, 1), (32, 104, 64, 3, 1), (64, 52, 128, 3, 1),
        (128, 26, 256, 3, 1), (256, 13, 512, 3, 1), (512, 13, 1024, 3, 1), (1024, 13, 512, 3, 1),
        (512, 13, 425, 1, 1))),
)


def yolo() -> Iterator[ConvLayer]:
    """Yields the convolutions of YOLOv4-tiny and YOLOv2-tiny at 416 x 416, each shape once for each
    network."""
    for network, shapes in _YOLOS:
        for channels, size, out_channels, kernel, stride in shapes:
            shape = f"{size}x{size}x{channels}-{out_channels}.{kernel}x{kernel}"
            yield ConvLayer(f"{network}/{shape}", channels, size, out_channels, kernel, stride,
                            kernel // 2)


def _as_product(layer: ConvLayer) -> LinearLayer:
    """Returns the product of an image's im2col matrix with the weights of a convolution."""
    return LinearLayer(layer.name, layer.channels * layer.kernel**2, layer.out_channels,
                       bias=False, rows=layer.out_size**2)


def _products_of(layers: Iterable[ConvLayer]) -> Iterator[LinearLayer]:
    """Yields the matrix products that im2col makes of convolutions, each size once."""
    sizes = set()
    for product in map(_as_product, layers):
        size = (product.rows, product.depth, product.columns)
        if size not in sizes:
            yield product
        sizes.add(size)


PRODUCTS = (
    *(LinearLayer(str(size), size, size, bias=False, rows=size)
      for size in (512, 1024, 2048, 4096, 8192)),
    # few rows, few columns, and a long sum
    *(LinearLayer(f"{rows}x{depth}x{columns}", depth, columns, bias=False, rows=rows)
      for rows, depth, columns in ((16, 4096, 4096), (128, 4096, 4096), (4096, 4096, 16),
                                   (65536, 64, 64), (64, 65536, 64))),
    LinearLayer("caffenet/fc6", 9216, 4096, relu=True),
    LinearLayer("caffenet/fc7", 4096, 4096, relu=True),
    LinearLayer("caffenet/fc8", 4096, 1000),
    LinearLayer("resnet50/fc1000", 2048, 1000),
    LinearLayer("googlenet/classifier", 1024, 1000),
    LinearLayer("mobilenetv2/classifier", 1280, 1000),
    *_products_of([*yolo(), *resnet50()]),
)
"""Square products, products of matrices with a small side, the last layers of image classifiers,
and the products that im2col makes of the convolutions of detectors and of ResNet-50."""

BINARY = (
    # the blocks of ResNet-18, whose shortcuts are 1x1 convolutions; the paper is named at
    # resnet50()
    ConvLayer("resnet18/layer1.3x3", 64, 56, 64, 3, 1, 1),
    ConvLayer("resnet18/layer2.first", 64, 56, 128, 3, 2, 1),
    ConvLayer("resnet18/layer2.shortcut", 64, 56, 128, 1, 2),
    ConvLayer("resnet18/layer2.3x3", 128, 28, 128, 3, 1, 1),
    ConvLayer("resnet18/layer3.first", 128, 28, 256, 3, 2, 1),
    ConvLayer("resnet18/layer3.shortcut", 128, 28, 256, 1, 2),
    ConvLayer("resnet18/layer3.3x3", 256, 14, 256, 3, 1, 1),
    ConvLayer("resnet18/layer4.first", 256, 14, 512, 3, 2, 1),
    ConvLayer("resnet18/layer4.shortcut", 256, 14, 512, 1, 2),
    ConvLayer("resnet18/layer4.3x3", 512, 7, 512, 3, 1, 1),
    # Karen Simonyan and Andrew Zisserman: Very Deep Convolutional Networks for Large-Scale Image
    # Recognition. ICLR 2015
    ConvLayer("vgg/conv2_2", 128, 112, 128, 3, 1, 1),
    ConvLayer("vgg/conv3_1", 128, 56, 256, 3, 1, 1),
    ConvLayer("vgg/conv3_2", 256, 56, 256, 3, 1, 1),
    ConvLayer("vgg/conv4_1", 256, 28, 512, 3, 1, 1),
    ConvLayer("vgg/conv4_2", 512, 28, 512, 3, 1, 1),
    ConvLayer("vgg/conv5_1", 512, 14, 512, 3, 1, 1),
    ConvLayer("pointwise/256", 256, 28, 256, 1),
    ConvLayer("pointwise/512", 512, 14, 512, 1),
)
"""Convolutions of binary networks. The input channels of each convolution fill whole words of
bits."""
