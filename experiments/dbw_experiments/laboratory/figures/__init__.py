"""Figures of what analysis has found. All of matplotlib is here, which takes a second to import."""
