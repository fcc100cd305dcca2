import os

from hypothesis import settings

# Tests make no claims about elapsed time. In CI they try the same examples every time, elsewhere always new ones.
settings.register_profile("dbw", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("dbw")
