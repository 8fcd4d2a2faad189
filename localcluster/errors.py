"""The error for an unmet requirement of this machine."""


class MissingRequirement(Exception):
    """A cluster needs something that is missing on this machine. The message says what is missing and what to do."""
