"""Why one source failed; `pull` turns these into what the user reads."""

from __future__ import annotations

from parse_local.errors import DownloadError


class SourceError(DownloadError):
    """One source cannot deliver the file; the next may.

    The message is a clause without a full stop, to be joined with others.
    """


class UnreachableError(SourceError):
    """The source did not answer at all, so other files need not be tried there."""
