"""The page about the paper's claims says what the committed results say."""

from pathlib import Path

from dbw_experiments.laboratory.reproduction import page
from dbw_experiments.laboratory.scenario import load_scenario, names

DOCUMENTS = Path(__file__).parents[4] / "docs"


def test_the_page_is_what_the_results_give() -> None:
    """If this fails, `make reproduction` writes it anew."""
    assert (DOCUMENTS / "reproduction.md").read_text("utf-8") == page(DOCUMENTS / "reproduction")


def test_every_scenario_that_needs_no_gpu_is_shown_with_its_figure() -> None:
    text = (DOCUMENTS / "reproduction.md").read_text("utf-8")
    for name in names():
        if not load_scenario(name).gpu:
            assert f"](reproduction/{name}/figure.svg)" in text
            assert (DOCUMENTS / "reproduction" / name / "figure.svg").is_file()
