"""Names of classes: the reader of label files, and the names of the classes of ImageNet and
COCO."""
