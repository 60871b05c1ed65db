"""Names of classes: the reader of label files, and the names of ImageNet's classes."""
