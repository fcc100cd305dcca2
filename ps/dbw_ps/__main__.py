"""`python -m dbw_ps` is `dbw ps`."""

import sys

from dbw_runtime.cli import main

sys.exit(main(["ps", *sys.argv[1:]]))
