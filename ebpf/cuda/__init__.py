"""CUDA calls of ranks: which functions of which libraries are watched, where they lie, and their sums."""
