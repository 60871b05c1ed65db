"""The reader of ONNX files, from opset 7 to the newest opset of the installed onnx."""
