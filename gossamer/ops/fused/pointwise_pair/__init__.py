"""Two 1x1 convolutions as one kernel, where the first convolution writes many channels."""
