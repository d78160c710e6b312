"""Short summaries of what each worker did: how long it spent in which function, and how that differs from others."""
