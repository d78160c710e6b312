"""One HTML page about one job: read the store once, draw with pure functions, put the page together."""
