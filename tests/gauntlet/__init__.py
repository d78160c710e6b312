"""Real faults in real training jobs, and near misses that must accuse nobody: `make gauntlet`."""
