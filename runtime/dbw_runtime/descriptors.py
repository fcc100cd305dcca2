"""How many files and connections a process may have open."""

import logging
import sys

log = logging.getLogger(__name__)
# For snapshots and checkpoints, logs, metrics, and what libraries keep open: connections never take these.
RESERVED = 100
FEW_CONNECTIONS = 100


def max_connections(asked: int) -> int:
    """How many connections a server may take, at most as many as asked for, once the process may open all it can."""
    if sys.platform == "win32":
        return asked
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # some systems have a lower limit than they say
        log.debug("the limit of open files cannot be raised: %s", error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return asked
    possible = max(soft - RESERVED, soft // 2)
    if possible < min(asked, FEW_CONNECTIONS):
        log.warning(
            "this process may open only %d files, so that it takes %d connections; see ulimit -n", soft, possible
        )
    return min(asked, possible)
