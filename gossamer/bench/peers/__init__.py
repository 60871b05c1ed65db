"""Who does the same work: PyTorch, ONNX Runtime, JAX and programs in C."""
