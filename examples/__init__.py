"""Complete training scripts that know nothing of Rootwalk."""
