"""The demonstration and the laboratory: everything that compares policies."""
