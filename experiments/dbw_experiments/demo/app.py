"""`dbw demo`: the same training under several policies, by real services on this machine, and what each took."""

import re
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from dbw_controller.named_policies import policy_from
from dbw_experiments.demo.recording import Recorder
from dbw_experiments.demo.report import write_report
from dbw_experiments.demo.runs import Run
from dbw_experiments.demo.services import FAREWELL, PATIENCE, Service, ServiceFailedError, Services
from dbw_experiments.demo.view import View, view
from dbw_experiments.policy_names import parse_policy
from dbw_ps.checkpoint import CheckpointFolder
from dbw_ps.model import load_model
from dbw_runtime.configuration import Options, WrongValueError, option, run_program
from dbw_worker import datasets
from dbw_worker.delays import parse_delay
from dbw_worker.evaluation import accuracy

LOCAL = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
LOOK_SECONDS = 0.2
OVER = "training is over"  # what parameter server and workers log before a good end
DESCRIPTION = """Start a controller, a parameter server and workers that are late on purpose on this machine, train the
same model under each policy until the loss is down to a target, and compare. Ends with a table and a report to be
opened in a browser."""


@dataclass(frozen=True)
class DemoOptions(Options):
    """Options of a demonstration."""

    policies: str = option("dbw-plus sync", "what to compare, the first with the others: dbw, sync, static:4, …")
    workers: int = option(8, "how many workers to start")
    delay: str = option(
        "shifted-exp:0.03,0.03 * factors:1,1,1,6", "how late they are, as for dbw worker; every fourth is slow"
    )
    sync_mode: Literal["push-wait", "push-interrupt", "pull"] = option("push-wait", "how parameters get to workers")
    model: str = option("mlp", "the model, as for dbw ps and dbw worker")
    dataset: str = option("digits", "the data set, as for dbw worker")
    data_dir: Path | None = option(None, "the folder of data sets; by default $DBW_DATA_DIR or ~/.cache/dbw")
    batch_size: int = option(128, "how many examples make a gradient")
    optimizer: str = option("sgd:lr=0.2", "as for dbw ps")
    target_loss: float = option(0.2, "train until the mean loss of ten iterations is at most this")
    max_seconds: float = option(120.0, "give a training up that does not get there in this time")
    device: str = option("cpu", "where workers compute; a GPU has to be shared by all of them")
    seed: int = option(0, "the seed of parameters, mini-batches and delays")
    output: Path = option(Path("dbw-demo"), "the folder for reports and logs, each demonstration in one of its own")

    def __post_init__(self) -> None:
        """Refuse what makes no sense before anything is started."""
        self.require_between("seed", 0, 2**63 - 1)
        self.require_between("target_loss", 1e-9, 1e9)
        for name, most in (("workers", 1000), ("batch_size", 2**31), ("max_seconds", 10**6)):
            self.require_between(name, 1, most)
        for policy in self.each_policy():
            policy_from(policy)
        try:
            parse_delay(self.delay)
        except ValueError as error:
            raise WrongValueError("delay", self.delay, f"a delay; {error}") from error

    def each_policy(self) -> list[str]:
        """The policies, in order."""
        found = self.policies.split()
        if not found or len(set(found)) < len(found):
            raise WrongValueError("policies", self.policies, "one or more policies that are all different")
        return found

    def command(self) -> str:
        """How to do the same again."""
        values = ((item, getattr(self, item.name)) for item in fields(self))
        changed = {item.name: value for item, value in values if value != item.default}
        return shlex.join(["dbw", "demo", *as_flags(changed)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a demonstration to its end."""
    return run_program("demo", DESCRIPTION, DemoOptions, arguments, demonstrate, ServiceFailedError, datasets.DataError)


def demonstrate(options: DemoOptions) -> int:
    """Train under each policy, and show what came out; returns the exit code, 1 if a target was missed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that services are ended
    console = Console()
    folder = options.output / datetime.now().astimezone().strftime("%Y-%m-%d-%H%M%S")
    load_model(options.model)  # what is wrong with model or data is told before anything is started
    datasets.load_examples(options.dataset, options.data_dir or datasets.default_folder())
    runs: list[Run] = []
    with Services(folder / "logs") as started:
        with view(console, "controller") as shown:
            shown.say("starting; the first time it compiles for half a minute")
            own = [name for policy in options.each_policy() if ":" in (name := parse_policy(policy).name)]
            flags = as_flags({"policies": ",".join(own) or None})
            controller = started.start("controller", "dbw_controller", *LOCAL, *flags)
            controller.wait_for("ready")
        for policy in options.each_policy():
            with view(console, policy) as shown:
                runs.append(Training(options, policy, controller, folder, started).run(shown))
            console.print(f"{policy}: loss {runs[-1].loss:.3g} after {runs[-1].seconds:.1f} s", highlight=False)
    report = folder / "report.html"
    write_report(report, runs, setting(options), options.command())
    console.print()
    console.print(summary(runs))
    console.print(f"Logs: {folder / 'logs'}\nReport: {report}", soft_wrap=True, highlight=False)
    missed = ", ".join(run.policy for run in runs if not run.reached)
    if missed:
        hint = "try a higher --target-loss, more --max-seconds or another --optimizer"
        console.print(f"The target was missed under {missed}: {hint}.", style="red", soft_wrap=True)
    return 1 if missed else 0


class Training:
    """One training: a parameter server and its workers, which report to a controller that is there."""

    def __init__(self, options: DemoOptions, policy: str, controller: Service, folder: Path, started: Services) -> None:
        self._options, self._policy, self._controller, self._services = options, policy, controller, started
        self._name = job_name(policy)
        self._folder = folder / self._name
        self._log = self._folder / "training.jsonl"

    def run(self, shown: View) -> Run:
        """Train until the loss is at the target, or time is up."""
        options = self._options
        shown.say(f"starting a parameter server and {options.workers} workers")
        server = self._services.start(f"{self._name} ps", "dbw_ps", *LOCAL, *self._server_flags())
        flags = [f"--server={address_of(server)}", *self._worker_flags()]
        # A worker gets its number when it joins, so it is not called by one.
        ids = [f"process-{i}" for i in range(options.workers)]
        workers = [self._services.start(f"{self._name} {id_}", "dbw_worker", f"--id={id_}", *flags) for id_ in ids]
        empty = Run(self._policy, options.workers, options.target_loss)
        with Recorder(empty, self._log, address_of(self._controller), self._name) as recorder:
            self._follow(recorder, server, workers, shown)
            return replace(recorder.run(), accuracy=self._accuracy())

    def _follow(self, recorder: Recorder, server: Service, workers: Sequence[Service], shown: View) -> None:
        """Show the training until its end; raises ServiceFailedError if a service does not do what it should."""
        began = time.monotonic()
        while not server.is_over(after=OVER):
            if self._controller.is_over():
                raise self._controller.failure("has left too early")
            for worker in workers:
                worker.is_over(after=OVER)
            run = recorder.run()
            if not run.iterations and time.monotonic() > began + PATIENCE:
                raise server.failure(f"has not begun to train after {PATIENCE:g} s")
            shown.show(run)
            time.sleep(LOOK_SECONDS)
        for worker in workers:
            worker.wait(FAREWELL)

    def _server_flags(self) -> list[str]:
        own = {"job": self._name, "policy": self._policy, "controller": address_of(self._controller)}
        kept = {"training_log": self._log, "checkpoint_dir": self._folder / "checkpoints"}
        common = ("model", "optimizer", "sync_mode", "seed", "target_loss", "max_seconds")
        return self._flags(common, **own, min_workers=self._options.workers, **kept)

    def _worker_flags(self) -> list[str]:
        common = ("model", "dataset", "data_dir", "batch_size", "delay", "device", "seed")
        return self._flags(common, threads=1, patience=30, metrics_listen="127.0.0.1:0")  # they share this machine

    def _flags(self, common: Sequence[str], **own: object) -> list[str]:
        """Options that are those of the demonstration, and others."""
        return as_flags({name: getattr(self._options, name) for name in common} | own)

    def _accuracy(self) -> float | None:
        """On examples that were held out, if the data set has any."""
        options = self._options
        if options.dataset not in datasets.NAMES:
            return None
        with closing(CheckpointFolder(self._folder / "checkpoints")) as checkpoints:
            found = checkpoints.newest()
        assert found is not None, "the parameter server writes one when it ends"
        model = load_model(options.model)
        model.load_state_dict(found[1]["model"])
        return accuracy(model, datasets.load(options.dataset, options.data_dir or datasets.default_folder()).held_out)


def job_name(policy: str) -> str:
    """What a training under a policy is called: its job and its files."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", policy).lstrip("._-")


def address_of(service: Service) -> str:
    """Where a service on this machine serves."""
    return f"127.0.0.1:{service.wait_for('listening')['grpc_port']}"


def as_flags(options: Mapping[str, object]) -> list[str]:
    """The options that have a value, for a command line."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def summary(runs: Sequence[Run]) -> Table:
    """How the runs compare with the first."""
    first = runs[0]
    table = Table(title=f"Time to loss {first.target_loss:g}", title_justify="left")
    table.add_column("policy")
    for heading in ("time", "iterations", "mean k", "held-out accuracy", f"speed-up by {first.policy}"):
        table.add_column(heading, justify="right")
    for run in runs:
        least = "" if run.reached else "> "  # which took longer than we waited
        table.add_row(
            run.policy,
            f"{least}{run.seconds:.1f} s",
            str(len(run.iterations)),
            f"{run.mean_k:.1f}",
            "" if run.accuracy is None else f"{run.accuracy:.1%}",
            "" if run is first or not first.reached else f"{least}{run.seconds / first.seconds:.2f}×",
        )
    return table


def setting(options: DemoOptions) -> dict[str, str]:
    """What the demonstration was told, for the report."""
    given = options.described()
    return {name.replace("_", " "): str(value) for name, value in given.items() if name not in ("config", "output")}
