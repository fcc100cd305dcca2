"""`python -m dbw_controller` is `dbw controller`."""

import sys

from dbw_controller.server.app import main

sys.exit(main())
