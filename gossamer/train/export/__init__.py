"""What training leaves: the network as ONNX, and the curve as a picture."""
