"""GraphBuilder: makes a graph layer by layer, for readers, the zoo, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from gossamer.expression import Expression, apply, identity
from gossamer.model.node_builder import NodeBuilder, NodeNames

Pair = tuple[int, int]
Margins = tuple[int, int, int, int]


class GraphBuilder(NodeBuilder):
    """Make a graph layer by layer.

    Each method that adds a layer returns the name of its result, which further layers take. The
    method's arguments are the attributes of the op, which `gossamer.model.opset` describes. Ops
    without a method here are added by `add`.

    Parameters
    ----------
    name : str
        Name of the network.
    file : str, default ""
        Path of the file from which the network is read, for messages.
    metadata : ModelMetadata, optional
        The meaning of the network's numbers.

    Attributes
    ----------
    graph : Graph
        The unfinished graph; `finish` returns the complete graph, checked.

    Examples
    --------
    >>> build = GraphBuilder("small")
    >>> x = build.input("x", (None, 3, 8, 8))
    >>> weight = build.constant("weight", np.ones((4, 3, 3, 3)))
    >>> y = build.apply("relu", build.conv2d(x, weight, pads=(1, 1, 1, 1)))
    >>> build.output(y, (None, 4, 8, 8))
    >>> graph = build.finish()
    """

    def conv2d(self, x: str, weight: str, bias: str = "", *, strides: Pair = (1, 1),
               pads: Margins = (0, 0, 0, 0), dilations: Pair = (1, 1), groups: int = 1,
               epilogue: Expression | None = None, **names: Unpack[NodeNames]) -> str:
        """Add a convolution.

        Parameters
        ----------
        x, weight, bias : str
            Input (N, C, H, W), weight (M, C/groups, R, S) and optional bias (M,).
        strides, dilations : pair of int
            Steps of the window and of its elements, vertical and horizontal.
        pads : tuple of 4 int
            Zeros round the input: top, left, bottom, right.
        groups : int
            Number of groups of channels.
        epilogue : Expression, optional
            Arithmetic on the result, which is the expression's input 0, and on the bias, which is
            input 1; by default the bias is added.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("conv2d", [x, weight, *_present(bias)], strides=tuple(strides),
                        pads=tuple(pads), dilations=tuple(dilations), groups=groups,
                        epilogue=epilogue or _sum_with(bias), **names)

    def gemm(self, a: str, b: str, bias: str = "", *, trans_a: bool = False, trans_b: bool = False,
             epilogue: Expression | None = None, **names: Unpack[NodeNames]) -> str:
        """Add a product of matrices, such as a fully connected layer.

        Parameters
        ----------
        a, b, bias : str
            The matrices, and an optional bias with a number for each column.
        trans_a, trans_b : bool
            Whether a or b is transposed before the product, as a weight of shape (outputs, inputs)
            has to be.
        epilogue : Expression, optional
            Arithmetic on the result, as for `conv2d`.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("gemm", [a, b, *_present(bias)], trans_a=trans_a, trans_b=trans_b,
                        epilogue=epilogue or _sum_with(bias), **names)

    def batch_norm(self, x: str, gamma: str, beta: str, mean: str, variance: str, *,
                   epsilon: float = 1e-5, **names: Unpack[NodeNames]) -> str:
        """Add a batch normalisation: (x - mean) / sqrt(variance + epsilon) * gamma + beta.

        Parameters
        ----------
        x, gamma, beta, mean, variance : str
            The input, and constants with a number for each channel.
        epsilon : float
            Number that is added to the variance.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("batch_norm", [x, gamma, beta, mean, variance], epsilon=epsilon, **names)

    def elementwise(self, expression: Expression, *inputs: str,
                    **names: Unpack[NodeNames]) -> str:
        """Add element-wise arithmetic of several steps.

        Parameters
        ----------
        expression : Expression
            The arithmetic, with one result.
        *inputs : str
            The expression's inputs, which are broadcast against each other.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("elementwise", inputs, expression=expression, **names)

    def apply(self, function: str, *inputs: str, constants: Sequence[float] = (),
              **names: Unpack[NodeNames]) -> str:
        """Add one element-wise function, such as an activation or a sum.

        Parameters
        ----------
        function : str
            Name of the function in `gossamer.expression.FUNCTIONS`: "relu", "add", "clip", ...
        *inputs : str
            The function's arguments, which are broadcast against each other.
        constants : sequence of float, optional
            The function's arguments that are plain numbers, such as the limits of "clip".
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.elementwise(apply(function, *constants), *inputs, **names)

    def pool(self, x: str, kind: str, kernel: Pair, *, strides: Pair = (1, 1),
             pads: Margins = (0, 0, 0, 0), dilations: Pair = (1, 1), ceil_mode: bool = False,
             count_include_pad: bool = False, **names: Unpack[NodeNames]) -> str:
        """Add a pooling layer.

        Parameters
        ----------
        x : str
            Input (N, C, H, W).
        kind : {"max", "average"}
            The function of the numbers in each window.
        kernel : pair of int
            Height and width of the window.
        strides, dilations, pads
            As for `conv2d`.
        ceil_mode : bool
            Whether a last window that reaches beyond the end of the input is computed.
        count_include_pad : bool
            Whether averages count the padding.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("pool", [x], kind=kind, kernel=tuple(kernel), strides=tuple(strides),
                        pads=tuple(pads), dilations=tuple(dilations), ceil_mode=ceil_mode,
                        count_include_pad=count_include_pad, **names)

    def reduce(self, x: str, kind: str, axes: Sequence[int] | str = "spatial", *,
               keepdims: bool = True, **names: Unpack[NodeNames]) -> str:
        """Add a reduction over some dimensions.

        Parameters
        ----------
        x : str
            The input.
        kind : {"mean", "max", "sum"}
            The function of the numbers.
        axes : sequence of int, or "spatial"
            The dimensions; "spatial" stands for all but the first two.
        keepdims : bool
            Whether the dimensions stay, with size 1.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("reduce", [x], kind=kind, keepdims=keepdims,
                        axes=axes if isinstance(axes, str) else tuple(axes), **names)

    def concat(self, xs: Sequence[str], axis: int = 1, **names: Unpack[NodeNames]) -> str:
        """Add a concatenation along one dimension.

        Parameters
        ----------
        xs : sequence of str
            The inputs, whose sizes may differ in this dimension only.
        axis : int
            The dimension.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("concat", xs, axis=axis, **names)

    def reshape(self, x: str, shape: Sequence[int], **names: Unpack[NodeNames]) -> str:
        """Add a change of shape.

        Parameters
        ----------
        x : str
            The input.
        shape : sequence of int
            The new sizes. 0 keeps the input's size. One size may be -1: it becomes the size that
            keeps the number of elements.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("reshape", [x], shape=tuple(shape), **names)

    def flatten(self, x: str, axis: int = 1, **names: Unpack[NodeNames]) -> str:
        """Add a change of shape that makes a matrix.

        Parameters
        ----------
        x : str
            The input.
        axis : int
            The first of the dimensions that become the columns.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("flatten", [x], axis=axis, **names)

    def resize(self, x: str, scales: Sequence[float] | None = None, *,
               sizes: Sequence[int] | None = None, mode: str = "nearest",
               coordinates: str = "asymmetric", nearest_mode: str = "floor",
               **names: Unpack[NodeNames]) -> str:
        """Add an enlargement or reduction of pictures; the defaults repeat pixels.

        Parameters
        ----------
        x : str
            Input (N, C, H, W).
        scales : sequence of float, optional
            Factor of each dimension, such as (1, 1, 2, 2).
        sizes : sequence of int, optional
            New size of each dimension, in place of scales.
        mode : {"nearest", "linear"}
            How pixels between the pixels of the input are computed.
        coordinates, nearest_mode : str
            ONNX's names of the rules that tell where a pixel of the result lies in the input, and
            which pixel of the input is nearest.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("resize", [x], scales=None if scales is None else tuple(scales),
                        sizes=None if sizes is None else tuple(sizes), mode=mode,
                        coordinates=coordinates, nearest_mode=nearest_mode, **names)

    def softmax(self, x: str, axis: int = -1, *, log: bool = False,
                **names: Unpack[NodeNames]) -> str:
        """Add a softmax along one dimension.

        Parameters
        ----------
        x : str
            The input.
        axis : int
            The dimension.
        log : bool
            Whether to take the logarithm of the result.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("softmax", [x], axis=axis, log=log, **names)


def _present(value: str) -> list[str]:
    return [value] if value else []


def _sum_with(bias: str) -> Expression:
    """Return the epilogue that adds a bias, or an empty epilogue where the layer has no bias."""
    return apply("add") if bias else identity()
