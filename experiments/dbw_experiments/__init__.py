"""The demonstration and, in time, the laboratory: everything that compares policies."""
