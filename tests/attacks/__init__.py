"""Attacks on a running server beside an innocent caller: `make attacks`."""
