"""Makes text of unknown origin safe for terminals and for logs with one entry per line."""


def printable(text: str) -> str:
    """Escape control characters, line breaks, and characters that change the direction of text.

    For example, a crash message of a user's program could otherwise move the cursor of an operator's terminal, or add
    a line to a log.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
