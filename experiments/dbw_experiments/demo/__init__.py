"""`dbw demo`: real services with injected stragglers on this machine, and what dynamic backup workers save."""
