"""Scenarios: small TOML files that say what to compare, and the runs that follow from them."""

import hashlib
import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from dbw_controller.named_policies import policy_from
from dbw_experiments.laboratory.membership import parse_membership
from dbw_experiments.laboratory.runs import Run
from dbw_ps.optimiser import Spec, rehearse
from dbw_runtime.configuration import UsageError
from dbw_worker.delays import parse_delay

FOLDER = Path(__file__).with_name("scenarios")
PLOTS = ("curves", "durations", "estimators", "speeds", "times", "times-over-cases")
Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]


class ScenarioError(Exception):
    """A scenario cannot be used; the text says why and what to do."""


class Compared(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy of a scenario, with its learning rate: the case's, one for all k, one for each, or proportional to k."""

    policy: str
    rule: str = ""  # what the learning rate follows, in a word
    k: list[Count] | Literal["all"] | None = None  # for the policy `static`: which ones
    rate: Rate | None = None
    rate_per_k: Rate | None = None
    rates: dict[str, Rate] | None = None
    half_life: Annotated[float, Meta(ge=0.001)] | None = None  # in iterations, of samples of durations
    seeds: Count | None = None  # unless as many as the case has
    cases: list[str] | None = None  # unless in all of them

    def each(self, workers: int, rate: float | None) -> Iterator[tuple[str, float]]:
        """The policies, each with its learning rate; unless it has one of its own, this one."""
        if (self.policy == "static") != (self.k is not None):
            raise ValueError('the policy "static" needs a k, which others do not have')
        rate = rate if self.rate is None else self.rate
        if self.k is None:
            if rate is None or self.rate_per_k or self.rates:
                raise ValueError(f"the policy {self.policy} needs a rate, and neither rates nor rate_per_k")
            yield self.policy, rate
            return
        for k in range(1, workers + 1) if self.k == "all" else self.k:
            if k <= workers:
                yield f"{self.policy}:{k}", self._rate(k, rate)

    def _rate(self, k: int, rate: float | None) -> float:
        if self.rates is not None and str(k) in self.rates:
            return self.rates[str(k)]
        if self.rate_per_k is not None:
            return round(self.rate_per_k * k, 12)  # 0.06, not 0.06000000000000000055
        if rate is None:
            raise ValueError(f"the policy {self.policy} needs a rate, rates or rate_per_k for k = {k}")
        return rate


class Case(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One situation in which policies are compared."""

    name: str = ""
    model: str
    dataset: str
    workers: Count
    batch: Count
    delay: str
    rate: Rate | None = None  # of policies that have none of their own
    rate_exponent: Annotated[float, Meta(ge=0, le=10)] = 0.0
    optimizer: str = "sgd"
    schedule: str | None = None
    seeds: Count = 1
    sync_mode: Literal["push-wait", "push-interrupt", "pull"] = "push-wait"
    membership: str = ""
    split: bool | Literal["by-label"] = False
    label_noise: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    target_loss: float | None = None
    target_every: Annotated[int, Meta(ge=0)] = 0
    iterations: Count = 10_000
    seconds: Annotated[float, Meta(gt=0)] | None = None
    detail: Literal["summary", "curves", "estimates"] = "summary"
    accuracy_every: Annotated[int, Meta(ge=0)] = 0
    exact_every: Annotated[int, Meta(ge=0)] = 0
    target_accuracy: Annotated[float, Meta(gt=0, lt=1)] | None = None  # for figures; runs go on
    compare: Annotated[list[Compared], Meta(min_length=1)]

    def runs(self, folder: Path, few_seeds: bool) -> Iterator[Run]:
        """All runs; some may be asked for twice."""
        common, files = {name: getattr(self, name) for name in COMMON}, _files(self, folder)
        for compared in self.compare:
            if compared.cases is not None and self.name not in compared.cases:
                continue
            seeds = self.seeds if few_seeds else compared.seeds or self.seeds
            own: dict[str, Any] = {"case": self.name, "rule": compared.rule, "half_life": compared.half_life}
            for policy, rate in compared.each(self.workers, self.rate):
                own["files"] = _digest(files + _source(policy))
                for seed in range(seeds):
                    yield Run(policy=policy, rate=rate, seed=seed, **own, **common)


COMMON = sorted((set(Run.__struct_fields__) & set(Case.__struct_fields__)) - {"rate"})


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario as it is written: what [setting] says holds in each [[case]] that does not say something else."""

    title: str
    figure: str  # of the paper
    plot: str  # how the results are shown, see figures/
    setting: dict[str, Any]
    compare: list[Any] = []  # unless each case has its own
    case: Annotated[list[dict[str, Any]], Meta(min_length=1)] = field(default_factory=lambda: [{}])
    quick: dict[str, Any] = {}  # what a small version changes
    gpu: bool = False  # whether it takes days without one


class Scenario(Struct, frozen=True, kw_only=True):
    """What is compared, and why."""

    name: str
    title: str
    figure: str
    plot: str
    folder: Path  # where its traces are
    cases: list[Case]
    gpu: bool = False
    quick: bool = False

    def runs(self) -> list[Run]:
        """All runs, without those that are asked for twice."""
        return list(dict.fromkeys(run for case in self.cases for run in case.runs(self.folder, self.quick)))


def names() -> list[str]:
    """The scenarios that come with this program."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_scenario(name: str, quick: bool = False) -> Scenario:
    """Read a scenario: one of ours by its name, or anybody's by its file."""
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    if not path.is_file():
        raise ScenarioError(f"there is no scenario {name!r}; there are {', '.join(names())}, and files of your own")
    try:
        scenario = _scenario(path, tomllib.loads(path.read_text("utf-8")), quick)
        _check(scenario)
    except (ValueError, UsageError) as error:  # TOML's and msgspec's are such as well
        raise ScenarioError(f"the scenario {path} cannot be used: {error}") from error
    return scenario


def _check(scenario: Scenario) -> None:
    """Refuse what could not be told apart, or not be drawn after hours of computing."""
    runs = scenario.runs()
    if not runs:
        raise ValueError("it has no runs: no k is as small as the number of workers")
    if len({(run.case, run.policy, run.rule, run.seed) for run in runs}) < len(runs):
        raise ValueError("each case needs a name, and policies that differ in their learning rates a rule, of its own")
    known = {case.name for case in scenario.cases}
    for case in scenario.cases:
        named = {name for compared in case.compare for name in compared.cases or []}
        if not named <= known:
            raise ValueError(f"there is no case {min(named - known)!r}; there are {', '.join(sorted(known))}")
        parse_delay(case.delay, scenario.folder)
        parse_membership(case.membership, case.workers)
        _check_optimizer(case)
        _check_plot(scenario.plot, case)


def _check_optimizer(case: Case) -> None:
    optimizer = Spec("optimizer", case.optimizer)
    if "lr" in optimizer.arguments:
        raise optimizer.wrong("without lr, which is the rate of each policy")
    rehearse(optimizer, None if case.schedule is None else Spec("schedule", case.schedule))


def _check_plot(plot: str, case: Case) -> None:
    if plot.startswith(("times", "speeds")) and case.target_loss is None:
        raise ValueError(f'the plot "{plot}" needs a target_loss')
    if plot == "curves" and case.detail == "summary":
        raise ValueError('the plot "curves" needs detail = "curves"')
    if plot in ("durations", "estimators") and case.detail != "estimates":
        raise ValueError(f'the plot "{plot}" needs detail = "estimates"')
    if plot == "durations" and case.membership:
        raise ValueError('the plot "durations" needs workers that stay, and no membership')
    if plot == "estimators" and not case.exact_every:
        raise ValueError('the plot "estimators" needs exact_every')
    if case.detail == "summary" and (case.accuracy_every or case.exact_every):
        raise ValueError('accuracy_every and exact_every need detail = "curves" or "estimates" to keep what they give')


def _files(case: Case, folder: Path) -> list[Path]:
    """The files of a case: its trace, and the code of its model and data set."""
    traces = [folder / name.strip() for name in re.findall(r"trace:([^,*]*)", case.delay)]
    return traces + [Path(name) for name in re.findall(r"(.*\.py):", f"{case.model}\n{case.dataset}")]


def _source(policy: str) -> list[Path]:
    """The file of a policy that is not ours, however it is named."""
    kind = type(policy_from(policy))
    return [] if kind.__module__.startswith("dbw_controller.") else [Path(inspect.getfile(kind))]


def _digest(files: Sequence[Path]) -> str:
    """A digest of what files say: if they change, runs are computed again. Empty if there are none."""
    contents = [path.read_bytes() for path in files if path.is_file()]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16] if contents else ""


def _scenario(path: Path, content: dict[str, Any], quick: bool) -> Scenario:
    file = msgspec.convert(content, File)
    if file.plot not in PLOTS:
        raise ValueError(f"there is no plot {file.plot!r}; there are {', '.join(PLOTS)}")
    common, small = {"compare": file.compare} | file.setting, file.quick if quick else {}
    return Scenario(
        name=path.stem,
        title=file.title,
        figure=file.figure,
        plot=file.plot,
        folder=path.parent,
        cases=[msgspec.convert(common | case | small, Case) for case in file.case],
        gpu=file.gpu,
        quick=quick,
    )
