"""The report of a demonstration: one HTML file that needs nothing beside it, and says first what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from dbw_experiments.demo import plots
from dbw_experiments.demo.analysis import close_up_seconds, decisions
from dbw_experiments.demo.runs import Run
from dbw_experiments.policy_names import parse_policy

SHOWN_DECISIONS = 15
SAME = 0.05  # times that differ by less than this share are called the same
NAMES = {
    "dbw-plus": "DBW+",
    "dbw": "dynamic backup workers",
    "b-dbw": "blind dynamic backup workers",
    "sync": "waiting for all workers",
}


@dataclass(frozen=True)
class Result:
    """What a training came to, beside the one that it is compared with."""

    run: Run
    name: str  # the policy in words
    ratio: float  # of its time to that of the first run

    @property
    def time(self) -> str:
        """How long it took to the target, or at least."""
        return f"{'> ' * (not self.run.reached)}{in_seconds(self.run.seconds)}"


def write_report(path: Path, runs: Sequence[Run], setting: Mapping[str, str], command: str) -> None:
    """Write the report of trainings to the same target loss, the first of which is what the others are compared with.

    The setting is shown as it is, and the command as how to run the demonstration again.
    """
    if not runs or not all(run.iterations for run in runs):
        raise ValueError("a report needs at least one training, and an iteration in each")
    found = results(runs)
    template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(
        headline=headline(found),
        results=found,
        relative=[relative(result, found[0]) for result in found],
        longest=max(run.seconds for run in runs) or 1.0,
        loss=plots.svg("loss", plots.loss_over_time, runs),
        k=plots.svg("k", plots.k_over_time, runs),
        close_up=plots.svg("closeup", plots.close_up, runs),
        lateness=plots.svg("lateness", plots.lateness_over_time, runs),
        durations=plots.svg("durations", plots.durations_over_time, runs),
        window=in_seconds(close_up_seconds(runs)),
        k_range=k_range,
        late_workers=late_workers,
        decisions=[(run, list(decisions(run))) for run in runs],
        shown_decisions=SHOWN_DECISIONS,
        setting=setting,
        command=command,
        workers=max(run.workers for run in runs),
        target_loss=runs[0].target_loss,
        in_seconds=in_seconds,
        colours=plots.COLOURS,
    )
    path.write_text(page, encoding="utf-8")


def results(runs: Sequence[Run]) -> list[Result]:
    """What each training came to."""
    first = runs[0].seconds or 1.0
    return [Result(run, in_words(run), run.seconds / first) for run in runs]


def headline(found: Sequence[Result]) -> str:
    """The result in one sentence."""
    first, *others = found
    reached = "reached" if first.run.reached else "did not reach"
    goal = f"loss {first.run.target_loss:g}"
    begin = f"{first.name[:1].upper()}{first.name[1:]} {reached} {goal} in {in_seconds(first.run.seconds)}"
    return f"{'; '.join([begin, *(comparison(other, first) for other in others)])}."


def comparison(other: Result, first: Result) -> str:
    """What another training did, as part of a sentence about the first."""
    time = in_seconds(other.run.seconds)
    if not other.run.reached:
        return f"{other.name} did not{' reach it' * first.run.reached} in {time}"
    if not first.run.reached:
        return f"{other.name} reached it in {time}"
    if abs(other.ratio - 1) < SAME:
        return f"{other.name} took {time}: about as long"
    if other.ratio > 1:
        return f"{other.name} took {time}: {times(other.ratio)} times as long"
    return f"{other.name} took only {time}: it was {times(1 / max(other.ratio, 1e-9))} times as fast"


def relative(result: Result, first: Result) -> str:
    """The time relative to the first training's, as far as both are known."""
    if result is first:
        return "1 ×"
    if not result.run.reached and not first.run.reached:
        return "–"
    bound = "> " if not result.run.reached else "< " if not first.run.reached else ""
    return f"{bound}{times(result.ratio)} ×"


def in_words(run: Run) -> str:
    """What a policy does, for somebody who does not know its name."""
    policy = parse_policy(run.policy)
    if policy.is_static and policy.parameters:
        return f"waiting for {policy.k(run.workers)} of {run.workers}"
    return NAMES.get(run.policy, policy.label if ":" in policy.name else run.policy)


def k_range(run: Run) -> str:
    """Between which numbers k was."""
    ks = [iteration.k for iteration in run.iterations]
    return f"always {ks[0]}" if min(ks) == max(ks) else f"between {min(ks)} and {max(ks)}, {run.mean_k:.1f} on average"


def late_workers(run: Run) -> str:
    """The share of late gradients of each worker that had any."""
    shares = {worker: run.late_share(worker) for worker in range(run.workers)}
    late = [f"worker {worker} {share:.0%}" for worker, share in shares.items() if share]
    return ", ".join(late) or "none"


def times(ratio: float) -> str:
    """A ratio with as many digits as help."""
    return f"{ratio:.2f}" if ratio < 1.5 else f"{ratio:.1f}" if ratio < 20 else f"{ratio:.0f}"


def in_seconds(seconds: float) -> str:
    """A time with as many digits as help, on one line with its unit."""
    digits = 2 if seconds < 1 else 1 if seconds < 100 else 0
    return f"{seconds:.{digits}f}\N{NO-BREAK SPACE}s"
