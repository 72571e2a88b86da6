"""Model files: where they lie on this machine, and how to get and to remove them."""

from parse_local.hub.progress import Progress
from parse_local.hub.pull import is_offline, pair_paths, paths, pull
from parse_local.hub.storage import (
    Presence,
    format_size,
    leftovers,
    local_path,
    presence,
    remove,
)

__all__ = [
    "Presence",
    "Progress",
    "format_size",
    "is_offline",
    "leftovers",
    "local_path",
    "pair_paths",
    "paths",
    "presence",
    "pull",
    "remove",
]
