"""The page that compares the paper's results with ours."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dbw_experiments.laboratory.findings import Findings
from dbw_experiments.laboratory.scenario import ScenarioError

TEMPLATE = "reproduction.md.j2"


def page(results: Path) -> str:
    """The page, from the results in a folder."""

    @cache
    def found(name: str) -> Findings:
        findings = Findings(name, results)
        if findings.missing:
            raise ScenarioError(
                f"{results} has not all results of {name}, {findings.missing} are missing: "
                f"get them with `dbw experiment run {name} --output {results}`"
            )
        return findings

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 (it is Markdown)
    return environment.get_template(TEMPLATE).render(found=found)
