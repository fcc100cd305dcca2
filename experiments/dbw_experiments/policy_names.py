"""Policies by the text that names them: `dbw`, `static:8`, `file.py:Class` or `package.module:Class:key=value`."""

from collections.abc import Sequence
from typing import NamedTuple

from dbw_runtime.parameters import Parameter, split_parameters

LABELS = {"dbw": "DBW", "b-dbw": "B-DBW", "adasync": "AdaSync", "dbw-plus": "DBW+"}


class PolicyName(NamedTuple):
    """The parts of such a text."""

    name: str  # `static`, or the place of a policy of one's own
    parameters: Sequence[Parameter]

    @property
    def label(self) -> str:
        """How figures call it: DBW, k = 8, the class of a policy of one's own."""
        if self.is_static:
            return f"k = {self.parameters[0].value if self.parameters else 'n'}"
        label = LABELS.get(self.name, self.name.rpartition(":")[2])
        return f"{label} ({','.join(map(str, self.parameters))})" if self.parameters else label

    @property
    def is_static(self) -> bool:
        """Whether k never changes."""
        return self.name in ("static", "sync")

    @property
    def ignores_time(self) -> bool:
        """Whether k does not depend on how long gradients take, and iterations have no deadline."""
        return self.is_static or self.name == "adasync"

    def k(self, workers: int) -> int:
        """The k of a static policy."""
        return int(float(self.parameters[0].value)) if self.parameters else workers


def parse_policy(text: str) -> PolicyName:
    """Take a text apart."""
    return PolicyName(*split_parameters(text, plugins=True))
