"""Who calls a server, and files that say so: on each line an identity and what proves it, such as a token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls a server."""

    identity: str  # empty where the server does not ask
    is_admin: bool = False
    # All names in the caller's certificate, without their types. Earlier versions took one of them for its identity.
    untyped_names: frozenset[str] = frozenset()


NOBODY = Caller("")


def read_callers(path: Path, proof: str, prefixes: Sequence[str] = ("",)) -> dict[str, Caller]:
    """The callers of a file, whose lines are `IDENTITY PROOF` or `IDENTITY PROOF admin`, by their proof.

    Each begins with one of `prefixes`; `proof` says what it is. A word that begins with # begins a comment; proofs may
    have one inside. Errors do not show them: they may be secret.
    """
    found: dict[str, Caller] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words, where = re.split(r"(?:^|\s)#", line)[0].split(), f"line {number} of {path}"
        if not words:
            continue
        if len(words) not in (2, 3):
            form = f"an identity and its {proof}, separated by spaces, and `admin` after them for an administrator"
            raise ValueError(f"{where} must be {form}")
        identity, key, *role = words
        if role not in ([], ["admin"]):
            raise ValueError(f"{where} has a third word that is not `admin`: there is no other role")
        if not key.startswith(tuple(prefixes)):
            raise ValueError(f"{where} has a {proof} without its type; it must begin with {', '.join(prefixes)}")
        if key in found:
            raise ValueError(f"{where} has a {proof} that an earlier line has as well")
        found[key] = Caller(identity, is_admin=bool(role))
    return found
