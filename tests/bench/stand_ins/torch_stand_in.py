"""A stand-in for PyTorch: functions of tensors compute at once, with NumPy. Streams, CUDA graphs,
torch.compile and the switches of the process note their calls in torch_tensors.CALLS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.special

from tests.bench.stand_ins.arrays import convolution, module, windows
from tests.bench.stand_ins.torch_modules import Graph, GraphModule, Module, Node, Sequential
from tests.bench.stand_ins.torch_tensors import (
    CALLS,
    CHANNELS_LAST,
    CONTIGUOUS,
    CPU,
    Device,
    Tensor,
    of_arrays,
    plain,
)

FLOAT = np.dtype("float32")


def modules() -> dict[str, ModuleType]:
    """Returns the stand-in and its modules, by the names under which they are imported."""
    return _MODULES


class Noted:
    """An object whose calls, contexts and attributes are noted."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Noted(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.append(f"{self._name}.{name} = {value}")
        vars(self)[name] = value

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        CALLS.append(_call(self._name, arguments, options))
        return Noted(self._name.rsplit(".", 1)[-1].lower())

    def __enter__(self) -> Any:
        CALLS.append(f"enter {self._name}")
        return self

    def __exit__(self, *_: Any) -> None:
        CALLS.append(f"leave {self._name}")

    def __repr__(self) -> str:
        return self._name


class _Around(Noted):
    """A context that may decorate a function."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **options: Any) -> Any:
            with self:
                return function(*arguments, **options)

        return around


def _call(name: str, arguments: Sequence[Any], options: dict[str, Any]) -> str:
    parts = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in options.items())]
    return f"{name}({', '.join(parts)})"


class _Compiled:
    """A module that was given to torch.compile."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def __call__(self, *inputs: Any) -> Any:
        CALLS.append(f"run compiled {self._compiled!r}")
        return self._compiled(*inputs)


def _compile(given: Any, **options: Any) -> _Compiled:
    CALLS.append(_call("compile", (given,), options))
    return _Compiled(given)


def _from_numpy(array: np.ndarray) -> Tensor:
    return Tensor(array)


def _made(array: np.ndarray, device: Device = CPU, dtype: Any = FLOAT) -> Tensor:
    return Tensor(np.asarray(array, dtype), device)


def _index_select(x: Tensor, axis: int, indices: Tensor, out: Tensor | None = None) -> Tensor:
    taken = np.take(x.array, indices.array, axis)
    if out is None:
        return x.like(taken)
    out.array[...] = taken
    return out


def _mm(x: Tensor, y: Tensor, out: Tensor) -> None:
    CALLS.append(f"mm({x}, {y}, out={out})")


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return x.like(np.clip(x.array, min, max).astype(x.dtype))


def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    return condition.like(np.where(plain(condition), plain(x), plain(y)))


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, strides: Any, pads: Any,
            dilations: Any, groups: int) -> Tensor:
    y = convolution(x.array, weight.array, strides, [(pad, pad) for pad in pads], dilations, groups)
    return x.like(y if bias is None else y + bias.array.reshape(-1, 1, 1))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = np.matmul(x.array.astype(np.float64), weight.array.T).astype(x.dtype)
    return x.like(y if bias is None else y + bias.array)


def _padded(x: Tensor, pads: Sequence[int], mode: str = "constant", value: float = 0) -> Tensor:
    pairs = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    assert mode == "constant"
    array = np.pad(x.array, [(max(low, 0), max(high, 0)) for low, high in pairs],
                   constant_values=value)
    return x.like(array[tuple(slice(max(-low, 0), size - max(-high, 0))
                              for (low, high), size in zip(pairs, array.shape, strict=True))])


def _last(size: int, pad: int, covered: int, stride: int, ceil_mode: bool) -> int:
    """Returns the padding behind the last pixel that the windows of a pool read."""
    steps = (size + 2 * pad - covered) / stride
    count = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
    # no window begins behind the padded image
    if ceil_mode and (count - 1) * stride >= size + pad:
        count -= 1
    return max((count - 1) * stride + covered - size - pad, 0)


def _pool(x: np.ndarray, start: float, function: Callable[..., Any], kernel: Any, strides: Any,
          pads: Any, dilations: Any, ceil_mode: bool) -> np.ndarray:
    behind = [_last(x.shape[2 + axis], pads[axis], (kernel[axis] - 1) * dilations[axis] + 1,
                    strides[axis], ceil_mode) for axis in range(2)]
    return windows(x, start, function, (1, 1, *kernel), (1, 1, *strides),
                   [(0, 0), (0, 0), *zip(pads, behind, strict=True)], (1, 1, *dilations))


def _max_pool2d(x: Tensor, kernel: Any, strides: Any, pads: Any, dilations: Any,
                ceil_mode: bool) -> Tensor:
    assert all(2 * pad <= size for pad, size in zip(pads, kernel, strict=True))
    return x.like(_pool(x.array, -np.inf, np.maximum, kernel, strides, pads, dilations, ceil_mode))


def _avg_pool2d(x: Tensor, kernel: Any, strides: Any, pads: Any, ceil_mode: bool,
                count_include_pad: bool) -> Tensor:
    assert all(2 * pad <= size for pad, size in zip(pads, kernel, strict=True))
    total = _pool(x.array.astype(np.float64), 0, np.add, kernel, strides, pads, (1, 1), ceil_mode)
    counted = np.ones(x.shape)
    if count_include_pad:
        counted = np.pad(counted, [(0, 0), (0, 0), *[(pad, pad) for pad in pads]],
                         constant_values=1)
        behind = [max(0, _last(x.shape[2 + axis], pads[axis], kernel[axis], strides[axis],
                               ceil_mode) - pads[axis]) for axis in range(2)]
        counts = windows(counted, 0, np.add, (1, 1, *kernel), (1, 1, *strides),
                         [(0, 0), (0, 0), *[(0, size) for size in behind]], (1, 1, 1, 1))
    else:
        counts = _pool(counted, 0, np.add, kernel, strides, pads, (1, 1), ceil_mode)
    return x.like((total / counts[:, :, :total.shape[2], :total.shape[3]]).astype(x.dtype))


def _layer_norm(x: Tensor, sizes: Sequence[int], scale: Tensor, bias: Tensor,
                epsilon: float) -> Tensor:
    axes = tuple(range(x.ndim - len(sizes), x.ndim))
    centred = x.array - x.array.mean(axes, keepdims=True)
    variance = (centred ** 2).mean(axes, keepdims=True)
    return x.like(centred / np.sqrt(variance + epsilon) * scale.array + bias.array)


def _rms_norm(x: Tensor, sizes: Sequence[int], scale: Tensor, epsilon: float) -> Tensor:
    axes = tuple(range(x.ndim - len(sizes), x.ndim))
    squares = (x.array ** 2).mean(axes, keepdims=True)
    return x.like(x.array / np.sqrt(squares + epsilon) * scale.array)


def _interpolate(x: Tensor, size: Sequence[int], mode: str) -> Tensor:
    assert mode == "nearest"
    rows, columns = (np.arange(new) * old // new
                     for new, old in zip(size, x.shape[2:], strict=True))
    return x.like(x.array[:, :, rows][:, :, :, columns])


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    exact = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return exact / exact.sum(axis, keepdims=True)


class _Conv2d(Module):
    def __init__(self, into: int, out: int, size: int, stride: int = 1, padding: int = 0, *,
                 groups: int = 1, bias: bool = True) -> None:
        self.stride, self.padding = (stride, stride), (padding, padding)
        self.dilation, self.groups = (1, 1), groups
        self.weight = Tensor(np.zeros((out, into // groups, size, size), FLOAT))
        self.bias = Tensor(np.zeros(out, FLOAT)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return _conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation,
                       self.groups)


class _BatchNorm2d(Module):
    def __init__(self, channels: int) -> None:
        self.weight, self.running_var = (Tensor(np.ones(channels, FLOAT)) for _ in range(2))
        self.bias, self.running_mean = (Tensor(np.zeros(channels, FLOAT)) for _ in range(2))
        self.num_batches_tracked = Tensor(np.int64(0))

    momentum: float | None = 0.1

    def reset_running_stats(self) -> None:
        self.running_mean.array.fill(0)
        self.running_var.array.fill(1)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        scale = self.weight.array / np.sqrt(self.running_var.array + 1e-5)
        return scale, self.bias.array - scale * self.running_mean.array

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            assert self.momentum is None
            self.running_mean.array = x.array.mean((0, 2, 3))
            self.running_var.array = x.array.var((0, 2, 3), ddof=1)
        scale, shift = (each.reshape(-1, 1, 1) for each in self.factors())
        return x.like((x.array * scale + shift).astype(x.dtype))


def _fuse(conv: _Conv2d, norm: _BatchNorm2d) -> _Conv2d:
    CALLS.append(f"fold {conv.weight.shape}")
    scale, shift = norm.factors()
    out, into = conv.weight.shape[:2]
    fused = _Conv2d(into * conv.groups, out, conv.weight.shape[2], conv.stride[0],
                    conv.padding[0], groups=conv.groups)
    fused.weight.array = (conv.weight.array * scale.reshape(-1, 1, 1, 1)).astype(FLOAT)
    bias = 0 if conv.bias is None else conv.bias.array
    fused.bias.array = (shift + scale * bias).astype(FLOAT)  # type: ignore[union-attr]
    return fused


class _Linear(Module):
    def __init__(self, into: int, out: int, bias: bool = True) -> None:
        self.weight = Tensor(np.zeros((out, into), FLOAT))
        self.bias = Tensor(np.zeros(out, FLOAT)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return _linear(x, self.weight, self.bias)


class _ReLU(Module):
    most = np.inf

    def __init__(self, inplace: bool = False) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return _clamp(x, 0, self.most)


class _ReLU6(_ReLU):
    most = 6


class _Dropout(Module):
    def __init__(self, share: float) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return x


class _Event(Noted):
    """An event; the time between two events is always the same."""

    microseconds = 100.0

    def __init__(self, enable_timing: bool) -> None:
        super().__init__("event")
        assert enable_timing

    def elapsed_time(self, end: Any) -> float:
        return _Event.microseconds / 1000


class _Identity(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class _Generator:
    def manual_seed(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)


def _randn(*sizes: int, generator: np.random.Generator | None = None) -> Tensor:
    return Tensor((generator or _RANDOM[-1]).standard_normal(sizes, np.float32))


class _Counter:
    """Counts nothing: each call has the same number of operations."""

    def __init__(self, display: bool) -> None:
        assert not display

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass

    def get_total_flops(self) -> int:
        return 203


def _relu_convolution(x: Tensor, weight: Tensor, bias: Tensor, *window: Any) -> Tensor:
    return _clamp(_conv2d(x, weight, bias, *window), 0)


def _backends() -> SimpleNamespace:
    products, convolutions = Noted("products"), Noted("convolutions")
    vars(products)["allow_tf32"] = False
    vars(convolutions).update(allow_tf32=True, benchmark=False)
    return SimpleNamespace(cuda=SimpleNamespace(matmul=products), cudnn=convolutions)


def _is_available() -> bool:
    return AVAILABLE[-1]


_RANDOM = [np.random.default_rng(0)]
AVAILABLE = [True]
"""Whether torch sees a CUDA device, as its last item says."""
_ELEMENTWISE = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan,
    "erf": scipy.special.erf, "floor": np.floor, "round": np.round, "sign": np.sign,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0),
    "minimum": np.minimum, "maximum": np.maximum, "softmax": _softmax,
    "log_softmax": lambda x, axis: np.log(_softmax(x, axis)),
    "mean": lambda x, axes, keepdim: x.mean(axes, np.float64, keepdims=keepdim),
    "amax": lambda x, axes, keepdim: x.max(axes, keepdims=keepdim),
    "sum": lambda x, axes, keepdim: x.sum(axes, np.float64, keepdims=keepdim),
    "matmul": np.matmul, "reshape": np.reshape, "permute": np.transpose, "t": np.transpose,
    "mv": np.matmul, "bmm": np.matmul, "addmv": lambda bias, x, y: bias + np.matmul(x, y),
    "baddbmm": lambda bias, x, y: bias + np.matmul(x, y)}
_FUNCTIONAL = module(
    "torch.nn.functional", conv2d=_conv2d, linear=_linear, pad=_padded, max_pool2d=_max_pool2d,
    avg_pool2d=_avg_pool2d, layer_norm=_layer_norm, rms_norm=_rms_norm, interpolate=_interpolate,
    leaky_relu=of_arrays(lambda x, slope: np.where(x < 0, x * slope, x)))
_FUSION = module("torch.nn.utils.fusion", fuse_conv_bn_eval=_fuse)
_COUNTERS = module("torch.utils.flop_counter", FlopCounterMode=_Counter)
_UTILS = module("torch.nn.utils", fusion=_FUSION)
_NN = module("torch.nn", functional=_FUNCTIONAL, utils=_UTILS, Module=Module, Sequential=Sequential,
             Parameter=lambda tensor, requires_grad: tensor, Conv2d=_Conv2d, Linear=_Linear,
             BatchNorm2d=_BatchNorm2d, ReLU=_ReLU, ReLU6=_ReLU6, Dropout=_Dropout,
             Identity=_Identity,
             modules=SimpleNamespace(batchnorm=SimpleNamespace(_BatchNorm=_BatchNorm2d)),
             init=SimpleNamespace(ones_=lambda tensor: tensor.array.fill(1)))
_FX = module("torch.fx", Graph=Graph, GraphModule=GraphModule, Node=Node)
_DYNAMO = module("torch._dynamo", reset=Noted("reset"), config=Noted("config"),
                 mark_static_address=Noted("mark_static_address"))
_CUDA = module(
    "torch.cuda", is_available=_is_available, synchronize=Noted("synchronize"),
    Stream=Noted("Stream"), ExternalStream=Noted("ExternalStream"), CUDAGraph=Noted("CUDAGraph"),
    current_stream=Noted("current_stream"), stream=Noted("on_stream"), graph=Noted("capture"),
    Event=_Event, empty_cache=Noted("empty_cache"))
_TORCH = module(
    "torch", nn=_NN, fx=_FX, cuda=_CUDA, _dynamo=_DYNAMO, Tensor=Tensor, device=Device,
    dtype=np.dtype, float32=FLOAT, float16=np.dtype("float16"), channels_last=CHANNELS_LAST,
    contiguous_format=CONTIGUOUS, from_numpy=_from_numpy, compile=_compile,
    inference_mode=lambda: _Around("inference_mode"), no_grad=lambda: _Around("no_grad"),
    backends=_backends(), compiler=Noted("compiler"), clamp=_clamp, where=_where, mm=_mm,
    index_select=_index_select, cudnn_convolution_relu=_relu_convolution,
    cat=lambda tensors, axis: tensors[0].like(np.concatenate(
        [tensor.array for tensor in tensors], axis)),
    ones=lambda *sizes, device, dtype: _made(np.ones(sizes), device, dtype),
    tensor=lambda values, device: _made(values, device),
    arange=lambda count, device: _made(np.arange(count), device, np.int64),
    randn=_randn, Generator=_Generator,
    manual_seed=lambda seed: _RANDOM.__setitem__(0, np.random.default_rng(seed)),
    empty_like=lambda tensor: tensor.clone(),
    sparse=SimpleNamespace(to_sparse_semi_structured=lambda matrix: matrix),
    ops=SimpleNamespace(aten=SimpleNamespace(sigmoid_backward=of_arrays(
        lambda error, out: error * out * (1 - out)))),
    **{name: of_arrays(function) for name, function in _ELEMENTWISE.items()})
_MODULES = {each.__name__: each for each in (
    _TORCH, _NN, _FUNCTIONAL, _UTILS, _FUSION, _FX, _DYNAMO, _CUDA, _COUNTERS,
    module("torch.utils", flop_counter=_COUNTERS))}
