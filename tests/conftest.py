import os

# Tests run side by side. Threads of PyTorch and NumPy wait for each other without sleeping, and would keep the
# processors from all other tests. Programs that tests start have this variable, too.
os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import settings

# Tests make no claims about elapsed time. In CI they try the same examples every time, elsewhere always new ones.
settings.register_profile("dbw", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("dbw")
