"""What the contract says in words only, for both sides of it."""

import re

# A job's name also stands in file names, metrics and commands.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_RULE = "1 to 128 letters, digits, '-', '_' and '.', the first a letter or digit"
# The largest piece that a state is exported or imported in.
PIECE_BYTES = 2 * 2**20
