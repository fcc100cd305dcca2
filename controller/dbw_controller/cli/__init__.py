"""Commands that ask a running controller."""
