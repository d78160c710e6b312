"""The local page over a store that is being written, and its JSON API."""
