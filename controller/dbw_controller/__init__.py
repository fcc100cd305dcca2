"""The controller of dynamic backup workers: how many gradients to wait for, and why."""
