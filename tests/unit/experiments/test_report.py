import re
import warnings
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dbw_experiments.demo import plots
from dbw_experiments.demo.analysis import moving_average
from dbw_experiments.demo.report import headline, relative, results, write_report
from dbw_experiments.demo.runs import Iteration, Run
from tests.runs import TARGET, simulated

COMMAND = "dbw demo --seed=7"
HOSTILE = "<script>alert('&\"')</script>$x$"


def lasting(run: Run, seconds: float) -> Run:
    """The same training, faster or slower."""
    scale = seconds / run.seconds
    rounds = [replace(i, begin=i.begin * scale, duration=i.duration * scale) for i in run.iterations]
    arrivals = [replace(a, time=a.time * scale) for a in run.arrivals]
    return replace(run, iterations=tuple(rounds), arrivals=tuple(arrivals))


def losing(run: Run, loss: float | None) -> Run:
    """The same training, with this loss in all iterations."""
    return replace(run, iterations=tuple(replace(i, loss=loss) for i in run.iterations))


DBW, SYNC, STATIC = (simulated(policy, iterations=40) for policy in ("dbw", "sync", "static:4"))


class Page(HTMLParser):
    """What there is in a page: tags with attributes, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def headline(self) -> str:
        found = re.search("<h1>(.*?)</h1>", self.source)
        assert found
        return " ".join(unescape(found[1]).split())

    @property
    def svgs(self) -> list[str]:
        return re.findall(r"<svg .*?</svg>", self.source, flags=re.DOTALL)

    @property
    def summary(self) -> list[list[str]]:
        """The cells of the first table."""
        rows = re.findall(r"<tr.*?</tr>", self.source.split("</table>")[0], flags=re.DOTALL)[1:]
        cells = [re.findall(r"<t[hd].*?</t[hd]>", row, flags=re.DOTALL) for row in rows]
        return [[" ".join(unescape(re.sub("<.*?>", "", cell)).split()) for cell in row] for row in cells]


def written(folder: Path, *runs: Run, **setting: str) -> Page:
    """A report of these runs."""
    path = folder / "report.html"
    write_report(path, runs, setting, COMMAND)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written(tmp_path_factory.mktemp("report"), DBW, SYNC)


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (
            (lasting(DBW, 12.3), lasting(SYNC, 35)),
            "Dynamic backup workers reached loss 0.2 in 12.3 s; waiting for all workers took 35.0 s: "
            "2.8 times as long.",
        ),
        (
            (lasting(DBW, 35), lasting(SYNC, 12.5)),
            "Dynamic backup workers reached loss 0.2 in 35.0 s; waiting for all workers took only 12.5 s: "
            "it was 2.8 times as fast.",
        ),
        (
            (lasting(DBW, 10), lasting(SYNC, 10.3), lasting(STATIC, 120)),
            "Dynamic backup workers reached loss 0.2 in 10.0 s; waiting for all workers took 10.3 s: about as long; "
            "waiting for 4 of 8 took 120 s: 12.0 times as long.",
        ),
        (
            (lasting(DBW, 10), losing(lasting(SYNC, 60), 0.5)),
            "Dynamic backup workers reached loss 0.2 in 10.0 s; waiting for all workers did not reach it in 60.0 s.",
        ),
        (
            (losing(lasting(DBW, 60), 0.5), lasting(SYNC, 30)),
            "Dynamic backup workers did not reach loss 0.2 in 60.0 s; waiting for all workers reached it in 30.0 s.",
        ),
        (
            (losing(lasting(DBW, 60), 0.5), losing(lasting(SYNC, 60), 0.7)),
            "Dynamic backup workers did not reach loss 0.2 in 60.0 s; waiting for all workers did not in 60.0 s.",
        ),
        (
            (losing(lasting(DBW, 10), None), losing(lasting(SYNC, 20), None)),
            "Dynamic backup workers did not reach loss 0.2 in 10.0 s; waiting for all workers did not in 20.0 s.",
        ),
        ((lasting(SYNC, 0.5),), "Waiting for all workers reached loss 0.2 in 0.50 s."),
        ((lasting(replace(DBW, policy="adasync:2"), 5),), "Adasync:2 reached loss 0.2 in 5.0 s."),
    ],
)
def test_the_headline_is_the_result_in_one_sentence(runs: tuple[Run, ...], sentence: str) -> None:
    assert headline(results(runs)).replace("\N{NO-BREAK SPACE}", " ") == sentence


def test_the_page_and_its_window_have_the_headline(page: Page) -> None:
    assert page.headline == headline(results((DBW, SYNC))).replace("\N{NO-BREAK SPACE}", " ")
    assert page.text.startswith(f"DBW: {page.headline}")


def test_the_table_has_a_row_a_run(tmp_path: Path) -> None:
    dbw, sync = lasting(DBW, 10), replace(lasting(SYNC, 25), accuracy=None)
    assert written(tmp_path, dbw, sync).summary == [
        ["dbw dynamic backup workers", "10.0 s", "1 ×", "40", f"{DBW.mean_k:.1f} of 8", "94.2 %"],
        ["sync waiting for all workers", "25.0 s", "2.5 ×", "40", "8.0 of 8", "–"],
    ]


@pytest.mark.parametrize(
    ("dbw_loss", "sync_loss", "times", "ratio"),
    [
        (0.1, 0.5, ["10.0 s", "> 25.0 s"], "> 2.5 ×"),
        (0.5, 0.1, ["> 10.0 s", "25.0 s"], "< 2.5 ×"),
        (0.5, 0.5, ["> 10.0 s", "> 25.0 s"], "–"),
    ],
)
def test_a_target_that_was_not_reached_is_a_bound(
    dbw_loss: float, sync_loss: float, times: list[str], ratio: str
) -> None:
    first, other = results((losing(lasting(DBW, 10), dbw_loss), losing(lasting(SYNC, 25), sync_loss)))
    assert [result.time.replace("\N{NO-BREAK SPACE}", " ") for result in (first, other)] == times
    assert relative(other, first) == ratio


def test_every_plot_has_a_name_and_a_caption(page: Page) -> None:
    labels = [attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "img"]
    assert len(page.svgs) == len(labels) == page.source.count("<figcaption>") == page.source.count("<figure>") == 5
    assert all(labels)
    assert "sync always 8" in str(labels[1])
    assert "worker 7" in str(labels[3])
    assert all("scope" in attributes for tag, attributes in page.tags if tag == "th")


def test_the_first_decision_and_changes_are_explained(tmp_path: Path) -> None:
    rounds = [replace(i, k=4 + number % 3, explanation=f"why {number}") for number, i in enumerate(DBW.iterations)]
    page = written(tmp_path, replace(DBW, iterations=tuple(rounds)), SYNC)
    assert "dbw: the first 15 of 40 decisions that changed k" in page.text
    assert "0 0.00 s 4 why 0 1" in page.text
    assert "4 → 5 why 1 " in page.text
    assert "why 14" in page.text
    assert "why 15" not in page.text
    assert SYNC.iterations[0].explanation in page.text


def test_setting_and_how_to_run_it_again_are_there(tmp_path: Path) -> None:
    page = written(tmp_path, DBW, learning_rate="0.1")
    assert '<th scope="row">learning_rate</th><td>0.1</td>' in page.source
    assert f"<code>{COMMAND}</code>" in page.source


def test_everything_is_escaped(tmp_path: Path) -> None:
    rounds = tuple(replace(i, explanation=f"explained {HOSTILE}") for i in DBW.iterations)
    first, other = replace(DBW, policy=HOSTILE, iterations=rounds), replace(SYNC, policy=f"other {HOSTILE}")
    page = written(tmp_path, first, other, **{f"name {HOSTILE}": f"value {HOSTILE}"})
    assert "<script" not in page.source
    assert not any(tag == "script" for tag, _ in page.tags)
    for shown in (f"explained {HOSTILE}", f"name {HOSTILE}", f"value {HOSTILE}", f"other {HOSTILE}"):
        assert shown in page.text
    for drawing in page.svgs:
        ElementTree.fromstring(drawing)  # noqa: S314 - our own


def test_the_same_runs_give_the_same_bytes(page: Page, tmp_path: Path) -> None:
    assert written(tmp_path, DBW, SYNC).source == page.source


def test_drawings_are_well_formed_and_do_not_clash(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for drawing in page.svgs:
        root = ElementTree.fromstring(drawing)  # noqa: S314 - our own
        own = {element.get("id") for element in root.iter()}
        assert set(re.findall(r'(?:href="|url\()#([^")]+)', drawing)) <= own
        assert root.get("viewBox")
        assert root.get("width") is None


def test_colours_are_those_of_the_page(page: Page) -> None:
    style, *_ = re.findall("<style>(.*?)</style>", page.source, flags=re.DOTALL)
    defined = set(re.findall(r"(--[\w-]+):", style))
    for drawing in page.svgs:
        assert "#f" not in drawing.replace("href=", ""), "no stand-in is left"
        assert set(re.findall(r"var\((--[\w-]+)\)", drawing)) <= defined
    assert {f"--{variable}" for variable in plots.VARIABLES.values()} <= defined


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    without_namespaces = re.sub(r' xmlns="http://www\.w3\.org/2000/svg"', "", page.source)
    assert not re.search(r"https?://|//[a-z]|@import|<script|<iframe|url\((?!#)", without_namespaces)
    links = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href")
    ]
    assert all(link is not None and link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in page.source


def test_two_long_trainings_stay_small(tmp_path: Path) -> None:
    page = written(tmp_path, simulated("dbw", 500), simulated("sync", 500))
    assert len(page.source.encode()) < 1_000_000


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param((DBW,), id="one run"),
        pytest.param((simulated("dbw", 1),), id="one iteration"),
        pytest.param((simulated("dbw", 1), SYNC), id="one iteration beside many"),
        pytest.param((losing(DBW, None), losing(SYNC, None)), id="no losses"),
        pytest.param((losing(DBW, float("nan")), losing(SYNC, float("inf"))), id="losses that are no numbers"),
        pytest.param(
            tuple(replace(r, iterations=tuple(replace(i, estimated=None) for i in r.iterations)) for r in (DBW, SYNC)),
            id="no estimates",
        ),
        pytest.param((replace(DBW, accuracy=None), replace(SYNC, accuracy=None)), id="no accuracy"),
        pytest.param((replace(DBW, arrivals=()), SYNC), id="no arrivals"),
        pytest.param((lasting(DBW, 40), lasting(SYNC, 10)), id="a slower first run"),
        pytest.param((losing(simulated("dbw", 1), 0.0), losing(SYNC, 0.0)), id="losses of zero"),
        pytest.param(tuple(replace(DBW, policy=f"dbw-{number}") for number in range(8)), id="more runs than colours"),
        pytest.param((replace(DBW, workers=100), SYNC), id="many workers"),
        pytest.param(
            (Run("dbw", 1, TARGET, (Iteration(0, 0.0, 0.0, 1, None, None, ""),), (), None), DBW),
            id="an iteration that took no time",
        ),
    ],
)
def test_unusual_runs_are_drawn_without_complaint(tmp_path: Path, runs: tuple[Run, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = written(tmp_path, *runs)
    assert len(page.svgs) == 5
    assert len(page.summary) == len(runs)
    assert "nan" not in "".join(page.svgs)


@pytest.mark.parametrize("runs", [(), (replace(DBW, iterations=()),)])
def test_no_training_is_no_report(tmp_path: Path, runs: tuple[Run, ...]) -> None:
    with pytest.raises(ValueError, match="at least one training, and an iteration in each"):
        write_report(tmp_path / "report.html", runs, {}, COMMAND)


def test_a_moving_average_keeps_what_is_constant_and_the_mean_of_its_window() -> None:
    assert moving_average(np.full(9, 3.0), width=2).tolist() == [3.0] * 9
    assert moving_average(np.array([0.0, 3.0, 6.0, 0.0]), width=1).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert moving_average(np.array([]), width=0).tolist() == []
