from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from msgspec.structs import replace

from dbw_experiments.laboratory.figures.scenario_figure import KINDS, draw
from dbw_experiments.laboratory.figures.series import series_of
from dbw_experiments.laboratory.figures.times_over_cases import numbered
from dbw_experiments.laboratory.runs import Column, Outcome, Record, Run
from dbw_experiments.laboratory.scenario import PLOTS, Case, Compared, Scenario

WORKERS, ITERATIONS = 4, 12
COMPARED = [
    Compared("dbw", "largest", rate=0.4),
    Compared("b-dbw", "largest", rate=0.4),
    Compared("adasync", "largest", rate=0.4),
    Compared("static", "proportional", k="all", rate_per_k=0.1),
    Compared("static", "largest", k="all", rate=0.4),
]


def scenario(plot: str, names: Sequence[str] = ("α = 0", "α = 1"), seeds: int = 3) -> Scenario:
    """All policies, in these cases."""
    case = Case(
        model="mlp",
        dataset="digits",
        workers=WORKERS,
        batch=8,
        delay="exp:1",
        seeds=seeds,
        compare=COMPARED,
        target_loss=0.5,
    )
    cases = [replace(case, name=name) for name in names]
    return Scenario(name="test", title="What is <tested> & $why$", figure="", plot=plot, folder=Path(), cases=cases)


def columns(random: np.random.Generator) -> dict[str, Column]:
    """What a run with every detail keeps; numbers that mean nothing."""
    made: dict[str, Column] = {"seconds": np.cumsum(random.exponential(size=ITERATIONS)).tolist()}
    made["k"] = random.integers(1, WORKERS + 1, ITERATIONS).astype(float).tolist()
    for name in ("loss", "estimated_squared_norm", "estimated_variance", "estimated_gain"):
        made[name] = random.exponential(size=ITERATIONS).tolist()
    for name in ("accuracy", "exact_loss", "exact_squared_norm", "exact_variance"):
        made[name] = [value if i % 5 < 2 else None for i, value in enumerate(random.random(ITERATIONS).tolist())]
    for name in ("estimated_durations", "average_durations"):
        made[name] = [[None, *row] for row in random.exponential(size=(ITERATIONS, WORKERS - 1)).tolist()]
    made["estimated_squared_norm"][0] = made["estimated_variance"][0] = made["estimated_gain"][0] = None
    return made


def records(of: Scenario, seconds: Callable[[Run], float | None] = lambda run: 10.0 + run.seed) -> list[Record]:
    """What came of a scenario, if its runs reach the target after so many seconds."""
    random = np.random.default_rng(1)
    made = []
    for run in of.runs():
        detail = columns(random)
        end = detail["seconds"][-1]
        assert isinstance(end, float)
        made.append(
            Record(
                run, Outcome(reached=seconds(run), iterations=12, gradients=30, seconds=end, loss=0.5, columns=detail)
            )
        )
    return made


def texts(folder: Path) -> list[str]:
    """What can be read in a figure."""
    root = ElementTree.parse(folder / "figure.svg").getroot()  # noqa: S314 - our own file
    return ["".join(found.itertext()) for found in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_plot_of_a_scenario_can_be_drawn() -> None:
    assert set(KINDS) == set(PLOTS)


@pytest.mark.parametrize("plot", KINDS)
def test_every_kind_of_figure_has_title_and_cases_as_text_and_a_wide_white_image(plot: str, tmp_path: Path) -> None:
    of = scenario(plot)
    svg, png = draw(of, records(of), tmp_path / "new")
    assert (svg.name, png.name) == ("figure.svg", "figure.png")
    assert of.title in texts(svg.parent)
    if plot != "times-over-cases":
        assert any("α = 1" in text for text in texts(svg.parent))
    image = matplotlib.image.imread(png)
    assert image.shape[1] == 1600
    assert (image[0, :, :3] == 1).all()


@pytest.mark.parametrize("plot", KINDS)
def test_the_same_records_give_the_same_bytes(plot: str, tmp_path: Path) -> None:
    of = scenario(plot, ["α = 1"], seeds=1)
    first, second = (draw(of, records(of), tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("plot", KINDS)
@pytest.mark.parametrize("known", [0, 20])
def test_an_interrupted_scenario_is_drawn_and_says_what_is_missing(plot: str, known: int, tmp_path: Path) -> None:
    of = scenario(plot)
    draw(of, records(of)[:known], tmp_path)
    assert f"{of.title} – {66 - known} of 66 runs are missing" in texts(tmp_path)


@pytest.mark.parametrize("plot", KINDS)
def test_runs_without_detail_are_no_reason_to_fail(plot: str, tmp_path: Path) -> None:
    of = scenario(plot, ["α = 1"])
    draw(of, [replace(one, outcome=replace(one.outcome, columns={})) for one in records(of)], tmp_path)


@pytest.mark.parametrize("plot", KINDS)
def test_a_diverged_training_is_drawn(plot: str, tmp_path: Path) -> None:
    def diverged(one: Record) -> Record:
        values = {name: [*column[:-2], None, None] for name, column in one.outcome.columns.items()}
        kept = {name: one.outcome.columns[name] for name in ("seconds", "k")}
        return replace(one, outcome=replace(one.outcome, reached=None, loss=None, columns=values | kept))

    of = scenario(plot, ["α = 1"])
    draw(of, [diverged(one) for one in records(of)], tmp_path)


@pytest.mark.parametrize("plot", ["times", "times-over-cases"])
def test_runs_that_never_reach_the_target_are_not_dropped(plot: str, tmp_path: Path) -> None:
    of = scenario(plot)
    draw(of, records(of), tmp_path)
    assert "target not reached by all runs" not in texts(tmp_path)
    draw(of, records(of, lambda run: None if run.policy == "dbw" and run.seed == 1 else 10.0), tmp_path)
    assert "target not reached by all runs" in texts(tmp_path)
    assert ("1/3" in texts(tmp_path)) == (plot == "times")


@pytest.mark.parametrize("plot", ["times", "times-over-cases"])
def test_a_target_that_nobody_reaches_is_shown_as_such(plot: str, tmp_path: Path) -> None:
    of = scenario(plot)
    draw(of, records(of, lambda run: None), tmp_path)
    assert "target not reached by all runs" in texts(tmp_path)
    if plot == "times":
        assert texts(tmp_path).count("none") == 4  # as the best k: two rules, two cases


def test_the_best_static_policy_of_each_rule_is_shown_and_that_with_all_workers(tmp_path: Path) -> None:
    def seconds(run: Run) -> float | None:
        if run.policy == "static:1":
            return None if run.seed == 0 else 1.0  # quick, but it does not always get there
        return {"static:2": 5.0, "static:3": 4.0}.get(run.policy, 9.0) + (run.rule == "largest") * (
            run.policy == "static:3"
        ) * 3

    of = scenario("times", names=["α = 0"])
    draw(of, records(of, seconds), tmp_path)
    shown = [text for text in texts(tmp_path) if text.startswith("k = ")]
    assert shown == ["k = 3", "k = 2", "k = 4"]


def test_curves_of_several_seeds_say_which_they_show(tmp_path: Path) -> None:
    of = scenario("curves", ["α = 1"])
    draw(of, records(of), tmp_path)
    assert "seed 0" in texts(tmp_path)
    single = scenario("curves", ["α = 1"], seeds=1)
    draw(single, records(single), tmp_path)
    assert "seed 0" not in texts(tmp_path)


def test_accuracy_is_drawn_if_it_was_measured(tmp_path: Path) -> None:
    of = scenario("curves", ["α = 1"])
    some = records(of)
    draw(of, some, tmp_path)
    assert "held-out accuracy" in texts(tmp_path)
    for one in some:
        del one.outcome.columns["accuracy"]
    draw(of, some, tmp_path)
    assert "held-out accuracy" not in texts(tmp_path)


def test_accuracies_of_all_seeds_are_box_plots_where_there_are_several(tmp_path: Path) -> None:
    of = scenario("curves", ["α = 1"])
    draw(of, records(of), tmp_path)
    assert "accuracy in the end," in texts(tmp_path)
    assert "seconds to the target" not in texts(tmp_path)
    aimed = replace(of, cases=[replace(case, target_accuracy=0.5) for case in of.cases])
    draw(aimed, records(aimed), tmp_path)
    assert "seconds to the target" in texts(tmp_path)
    assert texts(tmp_path).count("DBW") == 3  # both rows, and the legend
    single = scenario("curves", ["α = 1"], seeds=1)
    draw(single, records(single), tmp_path)
    assert "accuracy in the end," not in texts(tmp_path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["α = 0", "α = 0.1", "α = 1"], ("α", [0.0, 0.1, 1.0])),
        (["B = 16", "B = 500"], ("B", [16.0, 500.0])),
        (["batch 16", "batch 500"], ("batch", [16.0, 500.0])),
        (["none", "α = 1"], (None, [0.0, 1.0])),
        (["α = 1", "β = 2"], (None, [0.0, 1.0])),
    ],
)
def test_cases_are_on_an_axis_by_the_numbers_in_their_names(
    names: list[str], expected: tuple[str | None, list[float]]
) -> None:
    assert numbered(names) == expected


def test_a_policy_has_the_same_colour_in_all_scenarios_and_no_other_has_it() -> None:
    many = series_of(scenario("times"), [])
    few = series_of(replace(scenario("times"), cases=[replace(scenario("times").cases[0], compare=COMPARED[:1])]), [])
    assert few[0].colour == many[0].colour
    assert len({some.colour for some in many}) == len({some.policy for some in many})


def test_a_rule_is_named_only_where_a_policy_has_two() -> None:
    labels = [some.label for some in series_of(scenario("times"), [])]
    assert labels[:4] == ["DBW", "B-DBW", "AdaSync", "k = 1, proportional"]
