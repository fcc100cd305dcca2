"""Policies by the text that names them: `dbw`, `static:8`, `file.py:Class` or `package.module:Class:key=value`."""

import re
from typing import NamedTuple

NAMES = {"dbw": "DBW", "b-dbw": "B-DBW", "adasync": "AdaSync", "dbw-plus": "DBW+"}
FORM = re.compile(r"([^:]*)(?::([^\W\d]\w*)(?![^:]))?:?(.*)")  # a class is a word between colons, or the last one


class PolicyName(NamedTuple):
    """The parts of such a text."""

    name: str  # `static`, or the place of a policy of one's own: `file.py`, `package.module`
    own_class: str  # empty for a policy that has a name
    parameters: str  # `8`, `k=8`

    @property
    def label(self) -> str:
        """How figures call it: DBW, k = 8, the class of a policy of one's own."""
        if self.is_static:
            return f"k = {self.value if self.name == 'static' else 'n'}"
        label = self.own_class or NAMES.get(self.name, self.name)
        return f"{label} ({self.parameters})" if self.parameters else label

    @property
    def is_static(self) -> bool:
        """Whether k never changes."""
        return not self.own_class and self.name in ("static", "sync")

    @property
    def ignores_time(self) -> bool:
        """Whether k does not depend on how long gradients take, and iterations have no deadline."""
        return self.is_static or (self.name, self.own_class) == ("adasync", "")

    @property
    def value(self) -> str:
        """The only parameter, with or without its name."""
        return self.parameters.rpartition("=")[2]


def parse_policy(text: str) -> PolicyName:
    """Take a text apart."""
    found = FORM.fullmatch(text)
    assert found is not None  # every line of text has this form
    return PolicyName(found[1], found[2] or "", found[3])
