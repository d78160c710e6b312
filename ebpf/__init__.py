"""Rootwalk: the host agent and its readers."""
