"""All that programs import or compile before they begin, for the process that tests fork theirs from."""

import gc
from importlib import import_module

from tests.kernels import compile_all

MODULES = (
    "dbw_controller.cli.conformance",
    "dbw_controller.cli.doctor",
    "dbw_controller.cli.jobs",
    "dbw_controller.cli.watch",
    "dbw_controller.cli.why",
    "dbw_controller.server.app",
    "dbw_experiments.laboratory.app",
    "dbw_ps.app",
    "dbw_worker.app",
    "dbw_worker.data_command",
    "sklearn.datasets",
    "tests.workers",
    "torch._dynamo",  # every optimiser imports it
)

for name in MODULES:
    import_module(name)
compile_all()
gc.freeze()  # collections in forks need not look at all this
