"""Serves a plan by Triton's Python backend and gossamer's batching.

Copy this file and model.plan to REPOSITORY/NAME/1/. Write REPOSITORY/NAME/config.pbtxt, with
`backend: "python"` and the plan's inputs and outputs.
"""

from pathlib import Path

import triton_python_backend_utils as pb_utils

import gossamer


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        on_gpu = args["model_instance_kind"] == "GPU"
        device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "host"
        self.plan = gossamer.Plan.load(folder / "model.plan", device)
        self.batcher = gossamer.Batcher(self.plan, latency=0.005)

    def execute(self, requests):
        # submit all requests before waiting for results, so that a wrong request fails alone
        return [finish() for finish in [self._begun(request) for request in requests]]

    def _begun(self, request):
        arrays = {info.name: pb_utils.get_input_tensor_by_name(request, info.name).as_numpy()
                  for info in self.plan.inputs}
        try:
            future = self.batcher.submit(arrays)
        except gossamer.GossamerError as error:
            refusal = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            return lambda: refusal
        return lambda: self._response(future)

    def _response(self, future):
        try:
            result = future.result()
        except gossamer.GossamerError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        results = result if isinstance(result, tuple) else (result,)
        return pb_utils.InferenceResponse(output_tensors=[
            pb_utils.Tensor(info.name, array)
            for info, array in zip(self.plan.outputs, results, strict=True)])

    def finalize(self):
        self.batcher.close()
