"""`python -m dbw_controller` is `dbw controller`."""

import sys

from dbw_runtime.cli import main

sys.exit(main(["controller", *sys.argv[1:]]))
