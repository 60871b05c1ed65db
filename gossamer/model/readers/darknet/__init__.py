"""The reader of Darknet's networks: a .cfg file of layers and a .weights file of parameters."""
