"""The devices that run plans: NumPy on the host, OpenCL devices and NVIDIA GPUs."""
