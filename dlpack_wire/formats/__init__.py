"""Other file formats, read and written without the libraries they come from; our own as one among them; conversion."""
