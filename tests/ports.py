"""Addresses for servers that a test stops and starts again, or for servers that are never there."""

import random

from tests.chaos.network import Ports

PORTS = Ports(random.Random())


def lasting_address() -> str:
    """An address that no other program is given which asks for any free port, while nobody listens there."""
    return f"127.0.0.1:{PORTS.draw()}"
