"""Jobs of which only metrics are stored, ours or others': scores, the walk over the dependency graph, the verdict."""
