"""What the documents show must be true: their messages parse, their code runs, their links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message_factory import GetMessageClass

from tests.contract import FILES

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TYPES = {m.full_name: GetMessageClass(m) for file in FILES for m in file.message_types_by_name.values()}


def blocks(language: str) -> list[tuple[str, str]]:
    """The code blocks of a language in all documents, each with the name of its document."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [(path.name, block) for path in DOCUMENTS for block in pattern.findall(path.read_text())]


@pytest.mark.parametrize(("document", "block"), blocks("txtpb"))
def test_messages_are_of_the_contract(document: str, block: str) -> None:
    header = re.match(r"# proto-message: (\S+)\n", block)
    assert header, f"a message in {document} does not say its type"
    text_format.Parse(block, TYPES[header[1]]())


@pytest.mark.parametrize(("document", "block"), blocks("python"))
def test_python_runs(document: str, block: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, f"{document}: {done.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", document.read_text())
    missing = [link for link in links if not link.startswith("https://") and not (document.parent / link).exists()]
    assert missing == []


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")


def test_every_make_target_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"`make ([a-z-]+)", path.read_text())}
    assert {"demo", "test"} <= named <= targets
