"""Dense convolution on tensor cores, in float16 and TF32."""
