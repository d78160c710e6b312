"""One file a case: what is done to which process, the truth, and what it looks like."""
