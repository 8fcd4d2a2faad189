"""Quantities are parsed, compared and formatted as Kubernetes does."""

from fractions import Fraction

import pytest

from gpu_runtime.kube.quantity import Quantity, same_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("16Gi", 16 * 2**30),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1.5Gi", 3 * 2**29),
        ("-2k", -2000),
        ("+.5", Fraction(1, 2)),
        ("5.", 5),
        ("100n", Fraction(1, 10**7)),
        ("3u", Fraction(3, 10**6)),
        ("1e-2", Fraction(1, 100)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_valid_quantity_is_parsed_exactly(text: str, value: Fraction) -> None:
    assert Quantity(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not-a-quantity",
        "16GB",
        "16gi",
        "1 Gi",
        " 1",
        "1\n",
        "--1",
        "1e",
        "Gi",
        ".",
        "1e999999999",
        "0x10",
        "1_0",
        "٣",
        "1ki",
        "nan",
    ],
)
def test_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        Quantity(text)


def test_equal_quantities_compare_equal() -> None:
    assert Quantity("1024Mi") == Quantity("1Gi")
    assert len({Quantity("1"), Quantity("1000m"), Quantity("1.0")}) == 1
    assert Quantity("1G") < Quantity("1Gi") <= Quantity("1024Mi")
    assert Quantity("1") != "1"
    assert same_quantity("0.5", "500m")
    assert not same_quantity("1G", "1Gi")
    assert same_quantity("not-a-quantity", "not-a-quantity")
    assert not same_quantity("not-a-quantity", "1")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1000", "1k"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-1000m", "-1"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
    ],
)
def test_canonical_form_has_the_largest_suffix_of_an_integer(text: str, canonical: str) -> None:
    assert str(Quantity(text).canonical()) == canonical


def test_quantity_from_a_value() -> None:
    assert str(Quantity.from_value(2**30, binary=True)) == "1Gi"
    assert str(Quantity.from_value(2**30)) == "1073741824"
    assert repr(Quantity("1Gi")) == "Quantity('1Gi')"
