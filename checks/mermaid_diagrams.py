"""Every Mermaid diagram of the documents parses, by Mermaid's own parser.

The parser comes from npm on first need, at the versions of `mermaid/package-lock.json`, into the user's cache folder.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from checks.finding import Finding
from checks.source_files import ROOT, tracked_files

PACKAGE = ROOT / "checks" / "mermaid"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)


def check_diagrams() -> Iterator[Finding]:
    diagrams = [(name, line, text) for name in tracked_files() if name.endswith(".md") for line, text in _of(name)]
    if not diagrams:
        return
    if missing := missing_programs():
        yield Finding(diagrams[0][0], diagrams[0][1], missing)
        return
    for (name, line, _), error in zip(diagrams, parse_errors([text for _, _, text in diagrams]), strict=True):
        if error:
            yield Finding(name, line, f"the Mermaid diagram does not parse: {error}")


def missing_programs() -> str:
    """Which programs the parser needs and this machine does not have, with the remedy; empty if none is missing."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    return (
        f"the Mermaid parser needs {' and '.join(missing)}: on Debian, 'apt-get install nodejs npm'" if missing else ""
    )


def parse_errors(diagrams: list[str]) -> list[str]:
    """The error of each diagram, empty if it parses."""
    command = ["node", "parse.mjs"]
    text = json.dumps(diagrams)
    ran = subprocess.run(command, cwd=_installed(), input=text, capture_output=True, text=True, check=True)
    return list(json.loads(ran.stdout))


def _of(name: str) -> Iterator[tuple[int, str]]:
    text = (ROOT / name).read_text()
    for found in DIAGRAM.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def _installed() -> Path:
    """The folder with the parser, installed if it is not there yet."""
    digest = sha256(b"".join((PACKAGE / name).read_bytes() for name in ("package-lock.json", "parse.mjs"))).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    place = cache / "gpu-runtime" / f"mermaid-{digest[:12]}"
    if not (place / ".installed").exists():
        place.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json", "parse.mjs"):
            shutil.copy(PACKAGE / name, place / name)
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=place, check=True)
        (place / ".installed").touch()
    return place
