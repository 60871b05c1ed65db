"""GraphBuilder: builds a graph layer by layer, with unique names, and checks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

from gossamer.errors import ModelError
from gossamer.expression import Expression, apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo, names_of, unused_name
from gossamer.model.metadata import ModelMetadata

Pair = tuple[int, int]
Margins = tuple[int, int, int, int]


class NodeNames(TypedDict, total=False):
    """Keyword arguments that name a new node and its result.

    Attributes
    ----------
    name : str
        Name of the node; by default its op and a number. If another node has this name, "_" is
        appended.
    output : str
        Name of the node's result; by default the node's name.
    source : str
        The layer's op and name in the file, for messages, such as "Conv 'features.0'"; by default
        the node's op and name.
    """

    name: str
    output: str
    source: str


class GraphBuilder:
    """Build a graph layer by layer.

    Each method that adds a layer returns the name of the layer's result, which further layers can
    read. The keyword arguments are attributes of the op, described in `gossamer.model.opset`. The
    method `add` adds an op that has no method of its own.

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
        The unfinished graph; `finish` checks and returns it.

    Examples
    --------
    >>> build = GraphBuilder("small")
    >>> x = build.input("x", (None, 3, 8, 8))
    >>> weight = build.constant("weight", np.ones((4, 3, 3, 3)))
    >>> y = build.apply("relu", build.conv2d(x, weight, pads=(1, 1, 1, 1)))
    >>> build.output(y, (None, 4, 8, 8))
    >>> graph = build.finish()
    """

    def __init__(self, name: str, *, file: str = "",
                 metadata: ModelMetadata | None = None) -> None:
        self.graph = Graph(name, [], [], [], {}, file, metadata=metadata or ModelMetadata())

    def input(self, name: str, shape: Sequence[int | None], dtype: str = "float32",
              labels: Sequence[str] = ()) -> str:
        """Add an input of the network.

        Parameters
        ----------
        name : str
            Name of the input.
        shape : sequence of int or None
            Sizes of the input's dimensions; None for an open size, such as the batch.
        dtype : str, default "float32"
            Dtype of the input's numbers.
        labels : sequence of str, optional
            Names of the dimensions in the file, for messages.

        Returns
        -------
        str
            Name of the input.
        """
        self.graph.inputs.append(ValueInfo(name, tuple(shape), dtype, tuple(labels)))
        return name

    def constant(self, name: str, array: Any) -> str:
        """Add a constant, such as a layer's weights.

        Parameters
        ----------
        name : str
            Name of the constant. If the graph already uses the name, "_" is appended.
        array : array
            The constant's value; floats of any width become float32.

        Returns
        -------
        str
            Name of the constant in the graph.
        """
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = np.asarray(array, np.float32)
        name = unused_name(names_of(self.graph), name)
        self.graph.constants[name] = array
        return name

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), *, name: str = "",
            output: str = "", source: str = "", **attributes: Any) -> str:
        """Add a node of any op.

        Parameters
        ----------
        op : str
            The op.
        inputs : sequence of str
            Names of the node's inputs, in the op's order; "" for an absent input.
        outputs : sequence of str, optional
            Names of the node's results if it has several.
        name, output, source : str
            Names as in `NodeNames`.
        **attributes
            The op's attributes.

        Returns
        -------
        str
            Name of the first result.
        """
        nodes = self.graph.nodes
        name = unused_name({node.name for node in nodes}, name or f"{op}_{len(nodes)}")
        results = list(outputs) or [output or unused_name(names_of(self.graph), name)]
        nodes.append(Node(op, name, list(inputs), results, attributes, source or f"{op} {name!r}"))
        return results[0]

    def output(self, value: str, shape: Sequence[int | None], dtype: str = "float32") -> None:
        """Declare a value as an output of the network.

        Parameters
        ----------
        value : str
            Name of the value.
        shape : sequence of int or None
            Sizes of the value's dimensions; None for an open size.
        dtype : str, default "float32"
            Dtype of the value's numbers.
        """
        self.graph.outputs.append(ValueInfo(value, tuple(shape), dtype))

    def conv2d(self, x: str, weight: str, bias: str = "", *, strides: Pair = (1, 1),
               pads: Margins = (0, 0, 0, 0), dilations: Pair = (1, 1), groups: int = 1,
               epilogue: Expression | None = None, **names: Unpack[NodeNames]) -> str:
        """Add a convolution.

        Parameters
        ----------
        x, weight, bias : str
            Input (N, C, H, W), weight (M, C/groups, R, S) and optional bias (M,).
        strides, dilations : pair of int
            Strides of the window, and distances between its elements: (vertical, horizontal).
        pads : tuple of 4 int
            Zero padding: top, left, bottom, right.
        groups : int
            Number of groups of channels.
        epilogue : Expression, optional
            Arithmetic on the result (the expression's input 0) and the bias (input 1); by default,
            the bias is added.
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
            The matrices, and an optional bias with one value per column.
        trans_a, trans_b : bool
            Whether `a` or `b` is transposed before the product. A weight `b` of shape
            (outputs, inputs) needs `trans_b`.
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
            The input, and constants with one value per channel.
        epsilon : float
            Number added to the variance.
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
            How the values of a window are combined.
        kernel : pair of int
            Height and width of the window.
        strides, dilations, pads
            As for `conv2d`.
        ceil_mode : bool
            Whether the output size is rounded up; the last window may then extend beyond the padded
            input.
        count_include_pad : bool
            Whether averages count elements of the padding.
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
            How values are combined.
        axes : sequence of int, or "spatial"
            The reduced dimensions; "spatial" means all but the first two.
        keepdims : bool
            Whether reduced dimensions are kept with size 1.
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
            The inputs, whose sizes may differ only along `axis`.
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
        """Add a reshape.

        Parameters
        ----------
        x : str
            The input.
        shape : sequence of int
            The new sizes. 0 keeps the input's size. One size may be -1: it is inferred from the
            number of elements.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("reshape", [x], shape=tuple(shape), **names)

    def flatten(self, x: str, axis: int = 1, **names: Unpack[NodeNames]) -> str:
        """Add a reshape to a matrix.

        Parameters
        ----------
        x : str
            The input.
        axis : int
            First of the dimensions that become columns; earlier dimensions become rows.
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
        """Add a resize of images; by default, each pixel is repeated.

        Parameters
        ----------
        x : str
            Input (N, C, H, W).
        scales : sequence of float, optional
            Factor per dimension, such as (1, 1, 2, 2).
        sizes : sequence of int, optional
            New size of each dimension; replaces `scales`.
        mode : {"nearest", "linear"}
            How values between pixels are interpolated.
        coordinates, nearest_mode : str
            ONNX's values of `coordinate_transformation_mode` and `nearest_mode`.
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
            Whether the result is the logarithm of the softmax.
        **names
            As in `NodeNames`.

        Returns
        -------
        str
            Name of the result.
        """
        return self.add("softmax", [x], axis=axis, log=log, **names)

    def finish(self) -> Graph:
        """Check the graph and return it.

        Returns
        -------
        Graph
            The graph.

        Raises
        ------
        ModelError
            If the graph has no output, if a value is defined twice, or if a node or an output reads
            a value that is not defined before it. Inputs, constants and nodes define values.
        """
        graph = self.graph
        makers: dict[str, str] = {}
        later = {name: node.source for node in graph.nodes for name in node.outputs}
        for info in graph.inputs:
            self._note(makers, info.name, "an input")
        for name in graph.constants:
            self._note(makers, name, "a constant")
        for node in graph.nodes:
            for name in filter(None, node.inputs):
                if name not in makers:
                    why = f"{later[name]} makes later" if name in later else (
                        "no input, constant or node makes")
                    raise self._error(f"{node.source} reads {name!r}, which {why}")
            for name in filter(None, node.outputs):
                self._note(makers, name, node.source)
        for info in graph.outputs:
            if info.name not in makers:
                raise self._error(f"output {info.name!r} is made by no input, constant or node")
        if not graph.outputs:
            raise self._error("the network has no output")
        return graph

    def _note(self, makers: dict[str, str], name: str, maker: str) -> None:
        """Record what defines a value. Raises ModelError if the value is already defined."""
        if name in makers:
            raise self._error(f"{name!r} is made twice, by {makers[name]} and by {maker}")
        makers[name] = maker

    def _error(self, text: str) -> ModelError:
        return ModelError(f"{self.graph.file or self.graph.name}: {text}")


def _present(value: str) -> list[str]:
    return [value] if value else []


def _sum_with(bias: str) -> Expression:
    """Return the epilogue that adds a bias, or an empty epilogue if the layer has no bias."""
    return apply("add") if bias else identity()
