"""Side-by-side measurements. Each module without a leading underscore runs as `python -m benchmarks.NAME [--json]`."""
