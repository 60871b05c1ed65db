"""The reader of ONNX files, opset 9 to 21."""
