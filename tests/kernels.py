"""`python -m tests.kernels` compiles all kernels, once, before tests that run side by side would all do it."""

from dbw_controller.core import job
from dbw_ps import norms


def compile_all() -> None:
    """Compile what no earlier run has left in the cache."""
    job.warm_up()
    norms.warm_up()


if __name__ == "__main__":
    compile_all()
