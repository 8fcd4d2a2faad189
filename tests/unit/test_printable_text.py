"""Text of users' programs cannot control a terminal or add lines to a log."""

import pytest

from gpu_runtime.printable_text import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text, Grüße, 漢字", "plain text, Grüße, 漢字"),
        ("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"),
        ("one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edef\u2028", "abc\\u202edef\\u2028"),
        ("\x00\x7f", "\\x00\\x7f"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(text).isprintable()
