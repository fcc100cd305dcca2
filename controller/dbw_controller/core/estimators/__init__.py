"""What policies compare: gains from gradient moments, and durations from arrival times."""
