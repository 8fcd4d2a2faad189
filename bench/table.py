"""Figures beside their floors and targets, for people."""

import msgspec


class Row(msgspec.Struct):
    what: str
    figure: float
    unit: str = ""
    floor: float | None = None
    """The least it could be, measured in the same run."""
    target: str = ""
    """At most so much."""
    missed: bool = False

    @property
    def ratio(self) -> float | None:
        return self.figure / self.floor if self.floor else None


def print_table(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}{'figure':>12}{'floor':>12}{'ratio':>8}  {'at most':<16}")
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        verdict = "MISSED" if row.missed else "holds" if row.target else ""
        print(
            f"{row.what:{width}}{_amount(row.figure, row.unit):>12}{_amount(row.floor, row.unit):>12}{ratio:>8}"
            f"  {row.target:<16}{verdict}".rstrip()
        )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 3 if value < 1 else 2 if value < 10 else 1
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") + (f" {unit}" if unit else "")
