"""What this machine lacks."""


class MissingRequirement(Exception):
    """Something that a cluster needs is missing. The message is one sentence that says what to do about it."""
