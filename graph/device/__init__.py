"""What profiles show of the way through a step on host and device, and how a finding's chain goes on with it."""
