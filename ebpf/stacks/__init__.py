"""Stacks of training threads: which code runs, and which waits, as profiles."""
