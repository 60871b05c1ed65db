"""The reader of tensors that torch.save wrote; it runs no code of the file."""
