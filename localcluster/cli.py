"""The command line of the local cluster."""


def main() -> int:
    return 0
