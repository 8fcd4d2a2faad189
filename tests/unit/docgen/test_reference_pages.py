"""The reference pages cover everything that the code defines."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docgen.__main__ import PAGES
from docgen.condition_guide import REASONS
from docgen.metric_pages import SECTIONS
from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.process.metrics import new_registry

SOURCES = Path(__file__).parents[3] / "src" / "gpu_runtime"


@pytest.mark.parametrize("name", PAGES)
def test_checked_in_page_equals_the_generated_page(name: str) -> None:
    path = Path(__file__).parents[3] / "docs" / "reference" / name

    assert path.read_text(encoding="utf-8") == PAGES[name](), "run `make reference`"


def test_every_reason_has_cause_and_remedy() -> None:
    assert {reason for guides in REASONS.values() for reason in guides} == set(ReadyReason)
    assert all(guide.phase and guide.cause and guide.remedy for guides in REASONS.values() for guide in guides.values())


def test_every_module_with_metrics_is_on_the_page() -> None:
    covered = {make.__module__ for _, makers in SECTIONS.values() for make in makers} | {new_registry.__module__}

    assert set(_modules_with_metrics()) == covered


def _modules_with_metrics() -> Iterator[str]:
    pattern = re.compile(r'\b(Counter|Enum|Gauge|Histogram|Info|Summary|counter|gauge|histogram)\(\s*f?"')
    for path in SOURCES.rglob("*.py"):
        if pattern.search(path.read_text(encoding="utf-8")):
            yield ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
