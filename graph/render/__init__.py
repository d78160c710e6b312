"""A verdict in words: for the terminal and for a chat. Computes nothing."""
