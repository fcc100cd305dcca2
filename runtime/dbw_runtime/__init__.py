"""What every process of DBW needs, once: options, logs, security, gRPC, metrics and the `dbw` command."""
