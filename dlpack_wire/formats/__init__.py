"""File formats of others, read and written without the libraries they come from."""
