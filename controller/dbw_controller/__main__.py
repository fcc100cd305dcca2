"""`python -m dbw_controller` is `dbw controller`."""

import sys

from dbw_controller.app import main

sys.exit(main())
