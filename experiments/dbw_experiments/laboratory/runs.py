"""What a training in the laboratory is determined by, and what came of it. Both are kept as JSON."""

from typing import Literal

from msgspec import Struct

from dbw_experiments.policy_names import PolicyName, parse_policy

Column = list[int | float | list[float | None] | None]


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One training. Two runs that are equal give the same outcome, to the last bit."""

    case: str = ""  # what sets it apart within its scenario
    model: str
    dataset: str
    workers: int
    batch: int  # examples of a gradient
    policy: str
    rate: float  # η
    rule: str = ""  # where the rate comes from
    rate_exponent: float = 0.0  # with k gradients the rate is η·(k/n)^this
    optimizer: str = "sgd"  # as `dbw ps` takes it, without lr: that is η
    schedule: str | None = None  # of η, as `dbw ps` takes it
    half_life: float | None = None  # in iterations, of samples of durations; None: they count for ever
    delay: str
    seed: int
    sync_mode: Literal["push-wait", "push-interrupt", "pull"] = "push-wait"
    membership: str = ""  # which workers are away when
    split: bool | Literal["by-label"] = False  # whether each worker has its own share of the data, and by what
    label_noise: float = 0.0  # the share of the training labels that are replaced by random ones
    target_loss: float | None = None  # train until the loss of the latest n gradients, or a few more, is at most this
    target_every: int = 0  # or that on the same examples each time, measured after this many iterations
    iterations: int = 10_000  # at most, and
    seconds: float | None = None  # on the virtual clock
    detail: Literal["summary", "curves", "estimates"] = "summary"  # what is kept of each iteration
    accuracy_every: int = 0  # iterations between measurements; 0: never
    exact_every: int = 0
    files: str = ""  # a digest of its trace and of the files of its model, data set and policy, if it has any

    @property
    def named(self) -> PolicyName:
        """Its policy."""
        return parse_policy(self.policy)

    @property
    def ignores_time(self) -> bool:
        """Whether what is learnt in an iteration is the same whatever the delays are."""
        return not (self.split or self.membership) and self.named.ignores_time

    @property
    def static_k(self) -> int:
        """The k of a static policy."""
        return self.named.k(self.workers)


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What came of a run. Seconds are those of the virtual clock."""

    reached: float | None  # when the target was reached
    iterations: int
    gradients: int  # that were used
    seconds: float  # when it ended
    loss: float | None  # of the latest n gradients; None if training has diverged
    columns: dict[str, Column] = {}  # for each iteration, as `detail` has it


class Record(Struct, frozen=True):
    """A line of a results file."""

    run: Run
    outcome: Outcome
