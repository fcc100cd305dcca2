"""Pages about results: words by hand, in templates, and numbers from the results."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dbw_experiments.laboratory.analysis.comparison import BEST, Comparison
from dbw_experiments.laboratory.analysis.findings import Findings
from dbw_experiments.laboratory.scenario import ScenarioError
from dbw_runtime.configuration import UsageError

FOLDER, ENDING = Path(__file__).parent, ".md.j2"


def titles() -> list[str]:
    """The pages that there are."""
    return sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob(f"*{ENDING}"))


def page(title: str, results: Path) -> str:
    """A page, from the results in a folder."""
    if title not in titles():
        raise UsageError(f"there is no page {title!r}; there are {', '.join(titles())}")

    @cache
    def found(name: str) -> Findings:
        findings = Findings(name, results)
        if findings.missing:
            raise ScenarioError(
                f"{results} has not all results of {name}, {findings.missing} are missing: "
                f"get them with `dbw experiment run {name} --output {results}`"
            )
        return findings

    @cache
    def compared(name: str) -> Comparison:
        return Comparison(found(name).scenario, found(name).records)

    loader = FileSystemLoader(FOLDER)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 (it is Markdown)
    return environment.get_template(f"{title}{ENDING}").render(found=found, compared=compared, best=BEST)
