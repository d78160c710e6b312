"""One module a verb; each has `add_arguments(parser)` and `run(arguments) -> int`."""
