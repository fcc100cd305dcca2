"""The pages about results say what the committed results say."""

from pathlib import Path

import pytest

from dbw_experiments.laboratory.pages import page, titles
from dbw_experiments.laboratory.scenario import load_scenario, names
from dbw_runtime.configuration import UsageError

DOCUMENTS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize("title", titles())
def test_a_page_is_what_the_results_give(title: str) -> None:
    """If this fails, `make reproduction` writes it anew."""
    assert (DOCUMENTS / f"{title}.md").read_text("utf-8") == page(title, DOCUMENTS / "reproduction")


def test_a_page_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="there are policies, reproduction"):
        page("novel", DOCUMENTS)


def test_every_scenario_that_needs_no_gpu_is_shown_with_its_figure() -> None:
    text = "".join((DOCUMENTS / f"{title}.md").read_text("utf-8") for title in titles())
    for name in names():
        if not load_scenario(name).gpu:
            assert f"](reproduction/{name}/figure.svg)" in text
            assert (DOCUMENTS / "reproduction" / name / "figure.svg").is_file()
