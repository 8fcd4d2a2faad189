"""What can go wrong with the repository, as one tree.

ResultsError
├─ Unusable   not now: the disk is full, the file is locked, the disk errs. Nothing was written; another try may succeed
└─ Unfit      never: no file of results, or one of a newer version. For the operator
"""


class RepositoryError(Exception):
    """Something went wrong between this process and its results."""


class RepositoryUnavailable(RepositoryError):
    """Nothing was written or read, and another try may succeed."""


class RepositoryIncompatible(RepositoryError):
    """This is not a repository that this process can use."""
