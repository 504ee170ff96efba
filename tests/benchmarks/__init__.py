"""Benchmarks: every row is ours against a peer and, where there is one, the physical limit, interleaved in one run."""
