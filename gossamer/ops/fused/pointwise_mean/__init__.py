"""A 1x1 convolution and the mean over each image: the end of many networks, as one kernel."""
