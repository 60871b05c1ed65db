"""The peers that gossamer is compared with: PyTorch, ONNX Runtime, JAX and programs in C."""
