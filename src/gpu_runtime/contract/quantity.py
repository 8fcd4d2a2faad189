"""Kubernetes quantities, exactly: 1024Mi is 1Gi, and 0.1 is a tenth."""

import re
from fractions import Fraction

DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}

_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE]|)|[eE]([+-]?\d{1,2}))", re.ASCII)


class Quantity:
    """An amount, as manifests write it."""

    def __init__(self, text: str) -> None:
        """ValueError where Kubernetes reads no quantity from the text."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a quantity")
        number, suffix, exponent = match.groups()
        self.text = text
        self.binary = suffix in BINARY
        self.value = Fraction(number) * _scale(suffix or "") * Fraction(10) ** int(exponent or 0)

    def canonical(self) -> str:
        """The API server's spelling: a whole number with the largest suffix that keeps it whole."""
        suffixes = ["", *BINARY] if self.binary else list(DECIMAL)
        for suffix in reversed(suffixes):
            if self.value and (self.value / _scale(suffix)).denominator == 1:
                return f"{self.value / _scale(suffix)}{suffix}"
        return str(self.value) if not self.value else self.text


def canonical(text: str) -> str:
    """One spelling for every quantity of the same size. What is no quantity stays as it is, for validation to name."""
    try:
        return Quantity(text).canonical()
    except ValueError:
        return text


def _scale(suffix: str) -> Fraction:
    return Fraction(1024) ** BINARY[suffix] if suffix in BINARY else Fraction(1000) ** DECIMAL[suffix]
