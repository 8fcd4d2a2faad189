"""Parses, compares and formats Kubernetes resource quantities exactly: 1024Mi equals 1Gi, and 0.1 is one tenth. Pure.

This module accepts only quantities that the API server accepts. Values are fractions, never floats.
"""

import re
from fractions import Fraction
from functools import lru_cache, total_ordering
from types import MappingProxyType

_DECIMAL_SUFFIXES = MappingProxyType(
    {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
)
_BINARY_SUFFIXES = MappingProxyType({"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60})
_QUANTITY_PATTERN = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]|)|[eE](?P<exponent>[+-]?[0-9]+))",
    re.ASCII,
)
_MAX_LENGTH = 64
"""Longer than every quantity that Kubernetes writes. The time that the pattern takes grows with the square of the
length."""
_MAX_EXPONENT = 100
"""Larger than the exponent of every quantity that Kubernetes can represent. Without a limit, the value of a text of a
few characters could use all memory."""


@total_ordering
class Quantity:
    """An amount in the notation of manifests, such as 500m or 16Gi. Quantities with the same value are equal."""

    __slots__ = ("text", "value")

    def __init__(self, text: str) -> None:
        self.text = text
        self.value = _parse(text)

    @classmethod
    def from_value(cls, value: Fraction | int, *, binary: bool = False) -> "Quantity":
        """Return the quantity of this value in canonical form: with the largest suffix that leaves an integer."""
        return cls(_format(Fraction(value), binary=binary))

    def canonical(self) -> "Quantity":
        """Return the same amount in the canonical form of the API server. A binary suffix stays binary."""
        return Quantity.from_value(self.value, binary=self.text.endswith("i"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: "Quantity") -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"


def same_quantity(one: str, other: str) -> bool:
    """Return whether two texts denote the same amount. A text that is not a quantity equals only an identical text."""
    if one == other:
        return True
    try:
        return Quantity(one) == Quantity(other)
    except ValueError:
        return False


def canonical_quantity(text: str) -> str:
    """Return the canonical form of a quantity.

    A text that is not a quantity is returned unchanged, because the validation reports it.
    """
    try:
        return str(Quantity(text).canonical())
    except ValueError:
        return text


@lru_cache(maxsize=1024)  # a cluster uses few different amounts, and every reconciliation parses them again
def _parse(text: str) -> Fraction:
    match = _QUANTITY_PATTERN.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: expected a number with an optional suffix, such as 500m or 16Gi")
    number, suffix, exponent = Fraction(match["number"]), match["suffix"], match["exponent"]
    if exponent is not None:
        if abs(int(exponent)) > _MAX_EXPONENT:
            raise ValueError(
                f"{text!r} is not a quantity: the exponent is not between -{_MAX_EXPONENT} and {_MAX_EXPONENT}"
            )
        return number * _power_of_ten(int(exponent))
    if suffix in _BINARY_SUFFIXES:
        return number * (1 << _BINARY_SUFFIXES[suffix])
    return number * _power_of_ten(_DECIMAL_SUFFIXES[suffix])


def _format(value: Fraction, *, binary: bool) -> str:
    if binary and value.denominator == 1:
        suffixes = [s for s, power in _BINARY_SUFFIXES.items() if value and value % 2**power == 0]
        return f"{int(value) >> _BINARY_SUFFIXES[suffixes[-1]]}{suffixes[-1]}" if suffixes else str(value)
    suffixes = [s for s, power in _DECIMAL_SUFFIXES.items() if (value / _power_of_ten(power)).denominator == 1]
    if not value or not suffixes:
        # Kubernetes cannot represent fractions of a billionth (n). It rounds them away from zero.
        return str(int(value)) if not value else f"{_round_away_from_zero(value * 10**9)}n"
    return f"{value / _power_of_ten(_DECIMAL_SUFFIXES[suffixes[-1]])}{suffixes[-1]}"


def _power_of_ten(power: int) -> Fraction:
    return Fraction(10**power) if power >= 0 else Fraction(1, 10**-power)


def _round_away_from_zero(value: Fraction) -> int:
    magnitude = -(-abs(value).numerator // abs(value).denominator)
    return magnitude if value > 0 else -magnitude
