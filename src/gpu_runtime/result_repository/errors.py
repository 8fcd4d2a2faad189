"""Errors of the result repository.

RepositoryError
├─ RepositoryUnavailable    Temporary: the disk is full, the file is locked, or an I/O error occurred. Retry.
└─ RepositoryIncompatible   Permanent: the file is not a result database or has a newer version. The operator must act.
"""


class RepositoryError(Exception):
    """Base class of the errors of the result repository."""


class RepositoryUnavailable(RepositoryError):
    """Nothing was written or read. A retry may succeed."""


class RepositoryIncompatible(RepositoryError):
    """This process cannot use the database file. A retry does not help."""
