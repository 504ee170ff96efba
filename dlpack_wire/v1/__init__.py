"""Generated code of the protocol buffers in proto/. Not to be edited: `make proto` makes it."""
