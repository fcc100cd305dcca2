"""`dbw conformance`: whether a controller, or a proxy before one, does what the contract says."""

from dbw_controller.cli.conformance.command import main

__all__ = ["main"]
