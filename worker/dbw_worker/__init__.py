"""The worker: computes gradients for a parameter server."""
