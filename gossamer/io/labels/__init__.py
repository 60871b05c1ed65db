"""Names of classes: the reader of files of names, and the names of ImageNet and COCO."""
