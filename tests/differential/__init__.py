"""Random networks by gossamer, beside ONNX Runtime and ONNX's reference."""
