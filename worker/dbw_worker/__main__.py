"""`python -m dbw_worker` is `dbw worker`."""

import sys

from dbw_runtime.cli import main

sys.exit(main(["worker", *sys.argv[1:]]))
