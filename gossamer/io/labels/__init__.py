"""Class names: the reader of name files, and the names of ImageNet and COCO."""
