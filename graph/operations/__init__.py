"""Jobs of which every operation is recorded: arrays, step graph, replay, counterfactual, and the verdict from them."""
