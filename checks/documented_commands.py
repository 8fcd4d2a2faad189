"""The shell commands of the documents: fenced `bash` blocks, in order, each with the reason if a test must not run it.

A block is marked by an HTML comment on the line above it: `<!-- not run: the reason -->`.
"""

import re
from dataclasses import dataclass

from checks.source_files import ROOT, tracked_files

BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>[^>]+?) -->\n)?^```bash\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
FIRST_PAGES = ("README.md", "docs/operations/README.md")
"""Later pages use the objects that the commands of these pages create."""


@dataclass(frozen=True)
class CommandBlock:
    page: str
    line: int
    text: str
    reason: str = ""
    """Why the test does not run it; empty if it does."""


def pages_with_commands() -> list[str]:
    documents = [name for name in tracked_files() if name.endswith(".md") and name not in FIRST_PAGES]
    return [page for page in (*FIRST_PAGES, *documents) if command_blocks(page, (ROOT / page).read_text())]


def command_blocks(page: str, text: str) -> list[CommandBlock]:
    return [
        CommandBlock(page, text.count("\n", 0, found.start("text")) + 1, found["text"], found["reason"] or "")
        for found in BLOCK.finditer(text)
    ]
