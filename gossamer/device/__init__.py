"""Where code runs: NumPy on the host, OpenCL devices and NVIDIA GPUs."""
