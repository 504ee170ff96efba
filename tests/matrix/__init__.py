"""Every producer, element type, layout and consumer; `python -m tests.matrix` writes docs/matrix.md."""
