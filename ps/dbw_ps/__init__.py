"""The parameter server: gives parameters to workers, averages the first k gradients that come back, and updates."""
