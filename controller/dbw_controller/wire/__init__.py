"""Conversion between the messages of the contract and the core."""
