"""What a job may be called: its name stands in file names, metrics and commands."""

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_RULE = "1 to 128 letters, digits, '-', '_' and '.', the first a letter or digit"
