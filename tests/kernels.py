"""`python -m tests.kernels` compiles all kernels, once, before tests that run side by side would all do it."""

from dbw_controller.core import job
from dbw_controller.core.policies import built_in_policies
from dbw_ps import norms


def compile_all() -> None:
    """Compile what no earlier run has left in the cache."""
    job.warm_up(built_in_policies())
    norms.warm_up()


if __name__ == "__main__":
    compile_all()
