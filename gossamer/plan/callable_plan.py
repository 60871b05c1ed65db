"""The ways to call a plan: directly, bound to arrays, asynchronously, or as a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.plan.run.bound import BoundCall
from gossamer.plan.run.calls import Calls, TailCalls
from gossamer.plan.run.context import single
from gossamer.plan.run.device_workers import Closable, Member, Members
from gossamer.plan.run.stream import ResultStream


class CallablePlan(Closable):
    """Calls a network on one device; the subclass `Plan` chooses the algorithm of each layer.

    Attributes
    ----------
    graph : Graph
        The network.
    device : Device
        The device that runs the network.
    """

    graph: Graph
    device: Device
    _calls: Calls

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None, **named: Any) -> Any:
        """Compute the network's outputs.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network, in the order and shape of the plan's `inputs`,
            with any batch size from 0 up. Their dtype is that of the plan's `inputs`, or a dtype
            that converts to it without loss. For example, float16, bfloat16 and uint8 convert to
            float32. The arrays may have any strides. They are NumPy arrays, or arrays of torch,
            cupy or jax.
            Arrays on the plan's CUDA device are read there, without a copy through the host. A
            mapping of names to arrays may be passed instead of all arrays.
        out : array or tuple of array, optional
            Arrays of the outputs' shapes and dtypes that receive the outputs, instead of new
            arrays.
        stream : optional
            The CUDA stream on which a call enqueues its work if its arrays are on the device; by
            default the current stream of the arrays' library.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        array or tuple of array
            The output, or a tuple of several outputs, in the shape and dtype of the plan's
            `outputs`. The arrays belong to the same library as the first input.

        Raises
        ------
        InputError
            If the number, shape or dtype of the inputs, or of `out`, is wrong, or the plan is
            closed.
        UnsupportedError
            If the plan is strict and the device cannot run a layer.
        DeviceError
            If the device fails or has too little memory.
        """
        return self._calls(inputs, named, out, stream)

    async def run_async(self, *inputs: Any, out: Any = None, stream: Any = None,
                        **named: Any) -> Any:
        """Compute the network's outputs without blocking the event loop.

        Another thread makes the call, and waits for the device.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network, as for `plan(x)`.
        out : array or tuple of array, optional
            Arrays that receive the outputs, instead of new arrays.
        stream : optional
            The CUDA stream on which a call enqueues its work if its arrays are on the device; by
            default the current stream of the arrays' library in the calling thread.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        array or tuple of array
            What `plan(x)` returns. The outputs are complete when it is returned, so that later work
            need not wait for the stream.

        Raises
        ------
        InputError, UnsupportedError, DeviceError
            As `plan(x)` does.
        """
        return await self._calls.asynchronous(inputs, named, out, stream)

    def bind(self, *inputs: Any, out: Any = None, stream: Any = None, **named: Any) -> BoundCall:
        """Check a call once, and return it for repeated use.

        Each bound call reads the current contents of its input arrays, and writes its output
        arrays; on a CUDA device the call is one graph that reads and writes these arrays in place.

        Parameters
        ----------
        *inputs : array
            One array for each input of the network, as for `plan(x)`.
        out : array or tuple of array, optional
            Arrays that receive the outputs, instead of new arrays. They are contiguous, of the
            outputs' shapes and dtypes, and on the plan's device if the inputs are on it.
        stream : optional
            The CUDA stream on which the bound call enqueues its work; by default the current stream
            of the inputs' library.
        **named : array
            The inputs by name, instead of `inputs`.

        Returns
        -------
        BoundCall
            The call. It takes no arguments, and returns the outputs.

        Raises
        ------
        InputError
            If the number, shape, dtype or device of the inputs or of `out` is wrong, if their
            memory overlaps, if there are no images, or if the plan is closed.
        UnsupportedError
            If the plan is strict and the device cannot run a layer.
        DeviceError
            If the device fails or has too little memory.
        """
        return self.calls("be bound").bound(inputs, named, out, stream)

    def pinned(self, batch: int) -> Any:
        """Return page-locked arrays for inputs.

        A GPU reads page-locked memory at the full speed of its bus.

        Fill the arrays in place, and call `plan(x)` or `plan.bind(x)` with them: no copy is made on
        the CPU. On a device without page-locked memory the arrays are ordinary NumPy arrays.

        Parameters
        ----------
        batch : int
            The number of images, 1 or more.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The input's array of zeros, or a tuple of arrays for several inputs.

        Raises
        ------
        InputError
            If the batch size is less than 1, or not supported by the network.
        OutOfMemoryError
            If the memory of the arrays cannot be page-locked.
        """
        return single(self.calls("have pinned inputs").page_locked(batch))

    @property
    def contexts(self) -> int:
        """Maximum number of concurrent calls of one batch size.

        Calls are concurrent if they come from several threads or use several streams. Calls above
        the maximum wait. Calls that run at the same time share the weights, and each call has its
        own buffers. These buffers are made when calls first overlap, as long as the device has
        enough memory.

        Returns
        -------
        int
            The number of calls, by default 4.
        """
        return self._calls.contexts.most

    @contexts.setter
    def contexts(self, number: int) -> None:
        """Set the number of concurrent calls. Raises InputError below 1."""
        if number < 1:
            raise InputError(f"contexts is {number}, expected 1 or more")
        self._calls.contexts.most = number

    def stream(self, batches: Iterable[Any], depth: int = 3, *,
               errors: str = "raise") -> ResultStream:
        """Compute many batches; return an iterator of the results.

        A thread reads batches ahead; meanwhile earlier batches are copied to the device, computed,
        and copied back. At most `2 * depth` batches are in memory, however slowly results are
        taken.

        Parameters
        ----------
        batches : iterable
            The batches in order, of any sizes: an array for a network of one input, a tuple or list
            of arrays by position, or a mapping of names to arrays, as for `plan(x)`. The arrays of
            a batch must not be changed before the iterator has returned the batch's result.
        depth : int, default 3
            Number of batches that the device has at once, each with its own memory. A CPU computes
            one batch at a time.
        errors : {"raise", "return"}, default "raise"
            What happens if a batch fails. With "raise" the batch's error is raised instead of its
            result, and iteration may continue with the next batch. With "return" the error is
            returned instead of the result.

        Returns
        -------
        ResultStream
            An iterator of the results, each as `plan(x)` returns it, in the order of the batches.
            The error of a batch names the number of the batch, counted from 0. An error that
            `batches` raises comes after the results of all earlier batches, and ends the stream.

        Raises
        ------
        InputError
            If `batches` is not an iterable of batches, if another argument is invalid, or if the
            plan is closed.
        """
        return ResultStream(
            Members([Member(self.calls("be streamed"))]), batches, depth, errors)

    def calls(self, use: str) -> Calls:
        """Return the object that runs the plan, for uses other than calling it.

        Parameters
        ----------
        use : str
            What is done with the plan, such as "be streamed", for the error's message.

        Returns
        -------
        Calls
            The object that has the network and the device, and that makes contexts.

        Raises
        ------
        InputError
            If the plan is closed, or ONNX Runtime computes the end of its network.
        """
        self._calls.check_usable()
        if isinstance(self._calls, TailCalls):
            raise self._calls.error(use)
        return self._calls
