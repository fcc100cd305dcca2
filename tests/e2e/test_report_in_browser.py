"""What somebody sees who opens a report: in a real browser, on a desk and on a phone, in light and in dark."""

import re
from typing import Any

import pytest

from dbw_experiments.demo.report import write_report
from tests.node import BROWSER, needs_browser, run_node
from tests.runs import simulated

pytestmark = needs_browser

VIEWS = [f"{place}, {mode}" for place in ("desk", "phone") for mode in ("light", "dark")]
READABLE = 3  # the contrast that WCAG asks for in large text and drawings


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    runs = [simulated("dbw", 300), simulated("sync", 200), simulated("static:4", 300)]
    setting = {
        "a setting": "with a long value " * 20,
        "another": "x" * 300,
    }
    write_report(path, runs, setting, command="dbw demo " + "--option=value " * 30)
    return run_node("report.mjs", {"report": str(path), "chromium": BROWSER})


def test_nothing_goes_wrong_and_nothing_is_asked_for(seen: dict[str, Any]) -> None:
    assert seen["console"] == []
    assert seen["errors"] == []
    assert seen["failed"] == []
    assert seen["requests"] == [seen["report"]] * len(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_all_plots_are_to_be_seen(seen: dict[str, Any], view: str) -> None:
    figures = seen["views"][view]["figures"]
    assert len(figures) == 5
    assert all(figure["width"] > 300 and figure["height"] > 150 for figure in figures), figures


@pytest.mark.parametrize("view", VIEWS)
def test_the_headline_says_what_came_out(seen: dict[str, Any], view: str) -> None:
    assert re.match(r"Dynamic backup workers reached loss 0\.2 in [\d.]+\ss; ", seen["views"][view]["headline"])


@pytest.mark.parametrize("view", VIEWS)
def test_details_open_on_a_click(seen: dict[str, Any], view: str) -> None:
    assert seen["views"][view]["opened"] == [True, True, True]


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_does_not_scroll_sideways(seen: dict[str, Any], view: str) -> None:
    assert seen["views"][view]["overflow"] == 0


@pytest.mark.parametrize("view", VIEWS)
def test_text_stands_out_from_the_page(seen: dict[str, Any], view: str) -> None:
    page = seen["views"][view]
    background = luminance(page["background"])
    assert (background < 0.1) == view.endswith("dark")
    assert len(page["texts"]) > 50
    for text in page["texts"]:
        low, high = sorted([luminance(text["colour"]), background])
        assert (high + 0.05) / (low + 0.05) >= READABLE, text


def luminance(colour: str) -> float:
    """How bright a colour such as rgb(1, 2, 3) is, from 0 to 1 (WCAG 2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
