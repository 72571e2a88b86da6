"""Where parse-local keeps its files: the one place that knows.

Set PARSE_LOCAL_HOME to move everything; otherwise the platform's own
user directories are used (platformdirs).
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_APP = "parse-local"


def _home() -> Path | None:
    value = os.environ.get("PARSE_LOCAL_HOME")
    return Path(value).expanduser() if value else None


def cache_dir() -> Path:
    """Directory for what can be fetched or computed again."""
    return _home() or Path(platformdirs.user_cache_dir(_APP, appauthor=False))


def data_dir() -> Path:
    """Directory for what is the user's own (history, tuned profiles)."""
    return _home() or Path(platformdirs.user_data_dir(_APP, appauthor=False))


def models_dir() -> Path:
    """Directory of downloaded GGUF files."""
    return cache_dir() / "models"


def tune_dir() -> Path:
    """Directory of what `parse-local tune` found out and made."""
    return data_dir() / "tune"


def history_file() -> Path:
    """Prompt history of `parse-local chat`."""
    return data_dir() / "chat_history"


def sessions_file() -> Path:
    """Sessions of `parse-local chat`, an SQLite database."""
    return data_dir() / "sessions.db"


def package_models_dir() -> Path:
    """Directory with catalog.toml and the shipped profiles.

    In an installed package it is `parse_local/models`; in a checkout the
    top-level `models/`.
    """
    installed = Path(__file__).parent / "models"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "models"
