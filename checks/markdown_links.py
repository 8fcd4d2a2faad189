"""Relative links of the documents lead to files and headings that exist."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from checks.finding import Finding
from checks.source_files import ROOT, tracked_files

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
INLINE_CODE = re.compile(r"`[^`]*`")
OUTSIDE = ("http://", "https://", "mailto:")


def check_links() -> Iterator[Finding]:
    for name in tracked_files():
        if name.endswith(".md"):
            for number, line in _text_lines(name):
                for link in LINK.finditer(INLINE_CODE.sub("", line)):
                    target = link[1] or link[2]
                    if not target.startswith(OUTSIDE) and (error := link_error(name, target)):
                        yield Finding(name, number, f"link {target!r}: {error}")


def link_error(name: str, target: str) -> str:
    file, _, anchor = target.partition("#")
    path = (ROOT / name).parent / file if file else ROOT / name
    if not path.exists():
        return "there is no such file"
    if anchor and path.suffix == ".md" and anchor not in _anchors(path.resolve()):
        return "the page has no such heading"
    return ""


def _text_lines(name: str) -> Iterator[tuple[int, str]]:
    """The lines outside of fenced code."""
    fenced = False
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


@cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors that GitHub makes of the headings."""
    seen: dict[str, int] = {}
    anchors = set()
    for _, line in _text_lines(str(path.relative_to(ROOT))):
        if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            anchors.add(f"{slug}-{count}" if count else slug)
        anchors.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return frozenset(anchors)
