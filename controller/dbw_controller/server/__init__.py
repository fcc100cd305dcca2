"""The network service: jobs, sessions, snapshots, metrics and every rpc."""
