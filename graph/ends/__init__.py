"""Why a job ended: what was done to its processes before the first of its ranks went."""
