"""Coverage-guided fuzzing of everything that reads a message; `python -m tests.fuzz` runs it for a while."""
