"""What a demonstration shows on the terminal while it runs: how far it is, k, the loss, and who is late."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dbw_experiments.demo.runs import Run

BARS = "▁▂▃▄▅▆▇█"
HISTORY = 60  # iterations
PLAIN_SECONDS = 2.0  # between lines where there is no terminal


class LiveView:
    """A panel that changes."""

    def __init__(self, live: Live, title: str) -> None:
        self._live, self._title = live, title

    def say(self, text: str) -> None:
        """Show what is being done before there is something to see."""
        self._live.update(Panel(Text(f"{text} …"), title=self._title, title_align="left"))

    def show(self, run: Run) -> None:
        """Show how far a run has come."""
        if run.iterations:
            self._live.update(Panel(self._content(run), title=self._title, title_align="left"))

    def _content(self, run: Run) -> RenderableType:
        last = run.iterations[-1]
        figures = Table.grid(padding=(0, 3))
        figures.add_row(
            f"{run.seconds:.1f} s",
            f"iteration {last.number}",
            f"loss {run.loss:.3f}, target {run.target_loss:g}",
            f"k = {last.k} of {run.workers}",
        )
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=1.0, completed=progress(run)))
        ks = "".join(BARS[(i.k * len(BARS) - 1) // run.workers] for i in run.iterations[-HISTORY:])
        return Group(
            bar,
            figures,
            workers(run),
            Text(f"k  {ks}", no_wrap=True, style="cyan"),
            Text(last.explanation, style="dim", no_wrap=True, overflow="ellipsis"),
        )


class PlainView:
    """Lines, a few seconds apart."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._next = 0.0

    def say(self, text: str) -> None:
        """Show what is being done before there is something to see."""
        self._console.print(f"{self._title}: {text}", soft_wrap=True)

    def show(self, run: Run) -> None:
        """Show how far a run has come, if that is news."""
        if run.iterations and time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            last, late = run.iterations[-1], run.late.most_common(1)
            whom = "".join(f", worker {worker} late {count} times" for worker, count in late)
            self._console.print(
                f"{self._title}: {run.seconds:.1f} s, iteration {last.number}, loss {run.loss:.3f}, "
                f"k = {last.k} of {run.workers}{whom}",
                soft_wrap=True,
            )


View = LiveView | PlainView


@contextmanager
def view(console: Console, title: str) -> Iterator[View]:
    """The view of one run."""
    if not console.is_terminal:
        yield PlainView(console, title)
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield LiveView(live, title)


def workers(run: Run) -> Table:
    """For each worker a bar of how many of its gradients were late."""
    table = Table.grid(padding=(0, 2))
    for worker in range(run.workers):
        share = run.late_share(worker)
        bar = ProgressBar(total=1.0, completed=share, width=24, complete_style="red", finished_style="red")
        table.add_row(f"worker {worker}", bar, f"{run.late[worker]} of {run.sent[worker]} gradients late")
    return table


def progress(run: Run) -> float:
    """How far a run is on the way from its first loss to the target, as a share; losses fall by ratios."""
    first = run.iterations[0].loss or math.nan
    way = math.log(first / run.target_loss) if first > run.target_loss > 0 else math.nan
    gone = math.log(first / max(run.loss, 1e-12))
    return min(max(gone / way, 0.0), 1.0) if way > 0 else 0.0
