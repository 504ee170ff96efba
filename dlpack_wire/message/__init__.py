"""One tensor as the bytes of one message."""
