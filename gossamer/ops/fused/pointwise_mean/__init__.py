"""A 1x1 convolution and the mean over each image, with which networks of small convolutions end."""
