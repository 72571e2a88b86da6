"""Every error a user can cause; each says what happened and what to do about it."""

from __future__ import annotations


class ParseLocalError(Exception):
    """Base of all errors that the CLI prints as one sentence.

    Attributes:
        exit_status: 1 where the work failed, 2 where the call itself was wrong.
    """

    exit_status = 1


class UsageError(ParseLocalError):
    """The arguments contradict each other or name something that does not exist."""

    exit_status = 2


class NativeLibraryError(ParseLocalError):
    """llama.cpp's shared library is missing or cannot be loaded."""


class CatalogError(UsageError):
    """A name that the catalogue does not hold, or a catalogue that cannot be read."""


class DownloadError(ParseLocalError):
    """No source could deliver the file."""


class OfflineError(DownloadError):
    """The file is not here and the network is switched off."""


class ChecksumError(DownloadError):
    """A file arrived whole but is not the one that the catalogue names."""


class StorageError(ParseLocalError):
    """The disk is full or the directory cannot be written."""


class ModelError(ParseLocalError):
    """A GGUF file is missing, damaged, or of a kind that cannot generate text."""


class PairError(ParseLocalError):
    """Draft and target cannot work together."""


class VocabularyError(PairError):
    """The speculator's model has another vocabulary than the target."""


class SpeculatorError(ParseLocalError):
    """A speculator failed while it ran; caught, and the answer goes on without it."""


class TemplateError(ParseLocalError):
    """A chat template is missing, broken, or refuses these messages."""


class JudgeError(ParseLocalError):
    """The verdict question cannot be asked of this model."""


class TaskError(UsageError):
    """A task that does not exist, whose file holds a bad line, or whose package is missing."""


class CalibrationError(ParseLocalError):
    """The answers at hand say too little to fit a profile."""


class GrammarError(UsageError):
    """A grammar or JSON schema that no answer can be held to."""


class ContextLengthError(ParseLocalError):
    """The prompt does not fit into the context."""


class OutOfMemoryError(ParseLocalError):
    """The models and their caches need more memory than the machine has."""


class DecodeError(ParseLocalError):
    """llama.cpp failed while decoding."""


class SessionError(ParseLocalError):
    """Chats cannot be kept or read: the file is damaged, newer, full or not writable."""


class ServerError(ParseLocalError):
    """`parse-local serve` cannot start: its packages are missing, or its address is taken."""


class PeerError(ParseLocalError):
    """Another program that a benchmark compares with cannot be started or does not answer."""


class Cancelled(ParseLocalError):  # noqa: N818 - not an error, a request
    """The caller asked to stop; what was final by then has been kept."""

    exit_status = 130
