"""`python -m dbw_ps` is `dbw ps`."""

import sys

from dbw_ps.app import main

sys.exit(main())
