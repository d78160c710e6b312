"""BPF programs (C) and their compiled objects."""
