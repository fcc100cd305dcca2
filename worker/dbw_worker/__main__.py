"""`python -m dbw_worker` is `dbw worker`."""

import sys

from dbw_worker.app import main

sys.exit(main())
