"""Rootwalk: the OTLP receiver and its store."""
