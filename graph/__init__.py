"""Rootwalk: from stored telemetry to a verdict, and the command line."""
