"""`dbw experiment`: the paper's experiments, and anybody's own, on a virtual clock."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dbw_experiments.laboratory.analysis.knee import curves, knee_runs
from dbw_experiments.laboratory.results import Results
from dbw_experiments.laboratory.runner import Crew
from dbw_experiments.laboratory.runs import Run
from dbw_experiments.laboratory.scenario import Scenario, ScenarioError, load_scenario, names
from dbw_experiments.laboratory.trace import write_trace
from dbw_experiments.laboratory.training import ControllerLostError, Place
from dbw_runtime.commands import Command, dispatch
from dbw_runtime.configuration import Options, UsageError, WrongValueError, option, parse
from dbw_worker.datasets import DataError
from dbw_worker.devices import find_device

DESCRIPTION = "Trainings on a virtual clock: real gradients of real models, but nobody waits for stragglers."


@dataclass(frozen=True)
class ExperimentOptions(Options):
    """Options of experiments."""

    output: Path = option(Path("dbw-experiments"), "the folder of results, one for each scenario")
    quick: bool = option(False, "a small version: seconds, and no result to be proud of")
    jobs: int = option(os.cpu_count() or 1, "how many runs to compute at the same time, each with one thread")
    device: str = option("cpu", "where gradients are computed: auto, cpu, or a GPU such as cuda:0")
    controller: str | None = option(None, "a controller that decides, HOST:PORT; estimates are not kept then")

    def __post_init__(self) -> None:
        self.require_between("jobs", 1, 1024)
        find_device(self.device)


@dataclass(frozen=True)
class KneeOptions(ExperimentOptions):
    """Options of the knee rule."""

    model: str = option("mnist-cnn-small", "the model, as for dbw ps")
    dataset: str = option("mnist", "the data set, as for dbw worker")
    batch_size: int = option(500, "how many examples make a gradient")
    k: str = option("1,4,16", "how many gradients make an iteration: a rate is found for each of these")
    iterations: int = option(40, "how long the short trainings are")
    seeds: int = option(2, "how many of them there are for each k and rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("batch_size", 2**31), ("iterations", 10**6), ("seeds", 1000)):
            self.require_between(name, 1, most)
        self.ks()

    def ks(self) -> list[int]:
        """Each k."""
        parts = self.k.split(",")
        if not all(part.strip().isdigit() and 1 <= int(part) <= 1000 for part in parts):
            raise WrongValueError("k", self.k, "numbers from 1 to 1000 with commas between them, such as 1,4,16")
        return [int(part) for part in parts]

    def run(self) -> Run:
        """What all short trainings have in common."""
        small: dict[str, Any] = {"model": "mlp", "dataset": "digits", "batch": 32, "iterations": 40}
        full = {"model": self.model, "dataset": self.dataset, "batch": self.batch_size, "iterations": self.iterations}
        what = small if self.quick else full
        return Run(workers=max(self.ks()), policy="sync", rate=1.0, delay="constant:1", seed=0, **what)


def main(arguments: Sequence[str]) -> int:
    """Run a subcommand; returns the exit code."""
    try:
        return dispatch("dbw experiment", DESCRIPTION, COMMANDS, arguments)
    except BrokenProcessPool:
        text = "a process that computed was killed, perhaps for want of memory; what was done is kept: try fewer --jobs"
        print(f"dbw experiment: {text}", file=sys.stderr)
    except (UsageError, ScenarioError, ControllerLostError, DataError, OSError) as error:
        print(f"dbw experiment: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 1


def _list(arguments: Sequence[str]) -> int:
    _parser("list", "Show the scenarios that there are.").parse_args(arguments)
    for scenario in map(load_scenario, names()):
        note = ", for a GPU" if scenario.gpu else ""
        print(f"{scenario.name:<22}{scenario.title} ({scenario.figure}{note})")
    return 0


def _run(arguments: Sequence[str]) -> int:
    parser = _parser("run", "Go through scenarios. What was computed before is not computed again.")
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="+", help="the name of a scenario, or a TOML file")
    options, given = parse(parser, ExperimentOptions, "experiment", arguments)
    return _go_through([load_scenario(name, options.quick) for name in given["scenarios"]], options)


def _all(arguments: Sequence[str]) -> int:
    parser = _parser("all", "Go through all scenarios but those for a GPU.")
    options, _ = parse(parser, ExperimentOptions, "experiment", arguments)
    scenarios = (load_scenario(name, options.quick) for name in names())
    return _go_through([scenario for scenario in scenarios if options.quick or not scenario.gpu], options)


def _go_through(scenarios: Sequence[Scenario], options: ExperimentOptions) -> int:
    from dbw_experiments.laboratory.figures.scenario_figure import draw  # matplotlib takes a second to import

    files = [Results(_folder(scenario, options) / "runs.jsonl") for scenario in scenarios]
    missing = [run for one, file in zip(scenarios, files, strict=True) for run in file.missing(one.runs())]
    with Crew(options.jobs, Console(stderr=True)) as crew:
        crew.prepare(missing, options.device)
        for scenario, results in zip(scenarios, files, strict=True):
            place, runs = Place(options.device, scenario.folder, options.controller), scenario.runs()
            crew.go_through(scenario.name, runs, results, place)
            results.tidy(runs)
            for path in draw(scenario, results.of(runs), _folder(scenario, options)):
                print(path)
    return 0


def _folder(scenario: Scenario, options: ExperimentOptions) -> Path:
    """Where a scenario's results are; apart from the others if they are not of the same worth."""
    quick, remote = "quick" if scenario.quick else "", "controller" if options.controller else ""
    return options.output / quick / remote / scenario.name


def _knee(arguments: Sequence[str]) -> int:
    from dbw_experiments.laboratory.figures.knees import draw_knees  # matplotlib takes a second to import

    parser = _parser("knee", "Find the learning rate beyond which training is hardly faster, by short trainings.")
    options, _ = parse(parser, KneeOptions, "knee", arguments)
    runs, folder = knee_runs(options.run(), options.ks(), options.seeds), options.output / "knee"
    results = Results(folder / "runs.jsonl")
    place = Place(options.device, controller=options.controller)
    with Crew(options.jobs, Console(stderr=True)) as crew:
        crew.prepare(results.missing(runs), options.device)
        crew.go_through("knee", runs, results, place)
    found = curves(results.of(runs))
    print(f"{'k':>4}{'knee':>9}")
    for k, curve in found.items():
        print(f"{k:>4}{'none' if curve.knee is None else f'{curve.knee:.3g}':>9}")
    for path in draw_knees(found, options.run().iterations, folder):
        print(path)
    return 0


def _trace(arguments: Sequence[str]) -> int:
    parser = _parser("trace", "Make a trace of a parameter server's training log: how long each gradient took.")
    parser.add_argument("log", metavar="TRAINING_LOG", type=Path, help="what dbw ps --training-log has written")
    parser.add_argument("--output", metavar="FILE", type=Path, default=Path("trace.csv"), help="the trace [trace.csv]")
    text = "deal gradients out to N workers, as if the log's had been as many machines"
    parser.add_argument("--workers", metavar="N", type=int, help=text)
    given = parser.parse_args(arguments)
    if given.workers is not None and given.workers < 1:
        parser.error(f"--workers is {given.workers}; it must be at least 1")
    gradients = write_trace(given.log, given.output, given.workers)
    print(f"{given.output}: {gradients} gradients")
    return 0


def _page(arguments: Sequence[str]) -> int:
    from dbw_experiments.laboratory.pages import page

    parser = _parser("page", "Write a page about the results that there are.")
    parser.add_argument("page", metavar="PAGE", type=Path, help="the file to write: reproduction.md or policies.md")
    options, given = parse(parser, ExperimentOptions, "experiment", arguments)
    given["page"].write_text(page(given["page"].stem, options.output), "utf-8")
    print(given["page"])
    return 0


def _parser(command: str, description: str) -> ArgumentParser:
    return ArgumentParser(prog=f"dbw experiment {command}", description=description, allow_abbrev=False)


COMMANDS = {
    name: Command(f"{__name__}:_{name}", summary, arguments=arguments)
    for name, arguments, summary in (
        ("list", "", "show the scenarios that there are"),
        ("run", "SCENARIO…", "go through scenarios, by name or TOML file; what is computed already stays as it is"),
        ("all", "", "go through all of them but those for a GPU"),
        ("knee", "", "find a learning rate, by the knee rule"),
        ("trace", "TRAINING_LOG", "make a trace of a parameter server's log, for delays such as trace:FILE.csv"),
        ("page", "PAGE", "write a page about the results that there are: on the paper's claims, or on policies"),
    )
}
