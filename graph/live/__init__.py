"""Jobs that run: detection on what is new, findings that open, change and close, and telling them."""
