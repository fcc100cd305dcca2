"""The algorithm: pure functions and objects. No clock, thread, socket, file, environment variable or logger."""
