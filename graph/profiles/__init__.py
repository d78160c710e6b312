"""Profiles of the store as seconds a step in stacks: what a rank's stacks have that its peers' have not."""
