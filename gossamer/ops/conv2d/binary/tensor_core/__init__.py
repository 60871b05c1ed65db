"""Binary convolutions on the tensor cores of NVIDIA GPUs, which multiply bits."""
