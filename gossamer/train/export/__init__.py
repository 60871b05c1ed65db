"""Results of training as files: the network as ONNX, and the learning curve as a picture."""
