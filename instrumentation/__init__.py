"""Rootwalk: telemetry from inside the training processes."""
