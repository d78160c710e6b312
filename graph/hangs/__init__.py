"""Jobs that hang: what every rank recorded, what waits for what, and the verdict from it."""
