"""Tensors between processes: the messages of the service, and its clients."""
