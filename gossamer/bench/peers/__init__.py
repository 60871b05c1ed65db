"""The libraries that gossamer is compared with, such as PyTorch and ONNX Runtime."""
