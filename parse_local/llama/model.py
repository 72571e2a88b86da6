"""Weights, vocabulary, chat template and metadata of one GGUF file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parse_local.errors import ModelError
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.memory_kind import MemoryKind, memory_kind, refusal

_MAGIC = b"GGUF"
_HIDDEN = (1 << 0) | (1 << 3)  # LLAMA_TOKEN_ATTR_UNKNOWN and _CONTROL, which have no piece
_LOAD_MODE_NONE = 0  # enum llama_load_mode; the only one that no_alloc works with


def check_file(path: Path) -> None:
    """Refuse what is plainly not a GGUF file before llama.cpp sees it.

    Raises:
        ModelError: the path is missing, a directory, unreadable, or has no GGUF header.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelError(
            f"There is no file {path}; check the path, or see `parse-local models list`."
        ) from None
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from None
    if magic != _MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file; convert the model, or download a .gguf of it."
        )


def _load_failure(path: Path, log: Sequence[str]) -> ModelError:
    text = " ".join(log)
    if (
        "within the file bounds" in text
        or "corrupted or incomplete" in text
        or "failed to read" in text
    ):
        return ModelError(f"{path} is truncated or damaged; delete it and download it again.")
    if "unknown model architecture" in text:
        name = text.split("unknown model architecture:")[-1].split("'")[1]
        return ModelError(
            f"{path} holds a model of architecture '{name}', which this llama.cpp does not know; "
            "use another model or a newer parse-local."
        )
    if "unable to allocate" in text or "failed to allocate" in text or "out of memory" in text:
        return ModelError(
            f"There is not enough memory to load {path}; close other programs, "
            "use a smaller quantisation, or lower --gpu-layers."
        )
    reason = log[0].split(": ", 1)[-1] if log else "llama.cpp gives no reason"
    return ModelError(f"llama.cpp cannot load {path} ({reason}); try downloading it again.")


class Model:
    """One loaded GGUF.

    Args:
        path: the file.
        n_gpu_layers: layers on the GPU, -1 for all.
        headers_only: read metadata and vocabulary but no weights; such a model cannot decode.
        mtp_heads: load the heads for multi-token prediction too, where the file has any.
        is_head: a head on another model's hidden states, which cannot write by itself.

    Raises:
        ModelError: the file is missing, damaged, or cannot generate text.

    Source: llama_model_load_from_file.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = -1,
        headers_only: bool = False,
        mtp_heads: bool = False,
        is_head: bool = False,
    ) -> None:
        self.handle: Any = None
        library.init()
        check_file(path)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.load_mtp = mtp_heads
        if headers_only:
            params.no_alloc = True
            params.load_mode = _LOAD_MODE_NONE
        with library.log.capture() as log:
            self.handle = lib.llama_model_load_from_file(str(path).encode(), params)
            if not self.handle:
                raise _load_failure(path, list(log))
        self.path = path
        self.n_gpu_layers = n_gpu_layers
        self.has_mtp_heads = mtp_heads
        """Whether heads for multi-token prediction were loaded if the file has any."""
        self._vocab = lib.llama_model_get_vocab(self.handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}
        reason = None if is_head else refusal(self)
        if reason:
            raise ModelError(reason)

    # metadata

    def metadata(self, key: str) -> str | None:
        """A scalar metadata value as a string, or None (llama_model_meta_val_str)."""
        buffer = ctypes.create_string_buffer(256)
        n = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        if n >= len(buffer):
            buffer = ctypes.create_string_buffer(n + 1)
            n = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return None if n < 0 else buffer.value.decode("utf-8", "replace")

    def _int(self, key: str, default: int) -> int:
        value = self.metadata(f"{self.architecture}.{key}")
        return int(value) if value and value.isdigit() else default

    @property
    def architecture(self) -> str:
        """general.architecture, for example "qwen2"."""
        return self.metadata("general.architecture") or "unknown"

    @property
    def description(self) -> str:
        """llama_model_desc, for example "qwen2 1.5B Q4_K - Medium"."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def n_ctx_train(self) -> int:
        """Context length that the model was trained with."""
        return int(lib.llama_model_n_ctx_train(self.handle))

    @property
    def n_layer(self) -> int:
        """Number of blocks."""
        return int(lib.llama_model_n_layer(self.handle))

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return int(lib.llama_model_n_embd(self.handle))

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return int(lib.llama_model_n_params(self.handle))

    @property
    def n_bytes(self) -> int:
        """Size of the file, which is the size of the weights to within the header."""
        return self.path.stat().st_size

    def kv_elements_per_token(self) -> int:
        """Values (K and V together) that one token takes in the cache, all layers."""
        n_head = int(lib.llama_model_n_head(self.handle)) or 1
        n_head_kv = int(lib.llama_model_n_head_kv(self.handle)) or n_head
        head = int(lib.llama_model_n_embd(self.handle)) // n_head
        k = self._int("attention.key_length", head)
        v = self._int("attention.value_length", head)
        return self.n_layer * n_head_kv * (k + v)

    @cached_property
    def memory_kind(self) -> MemoryKind:
        """How its memory is forked and rolled back."""
        return memory_kind(self)

    @property
    def chat_template(self) -> str | None:
        """The file's own Jinja template (tokenizer.chat_template)."""
        template = lib.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None

    # vocabulary

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`; nothing is added before or behind.

        Args:
            text: any Unicode text.
            special: recognise control tokens written out in the text, as templates need.
        """
        data = text.encode("utf-8", "surrogatepass")
        n = len(data) + 2
        buffer = (lib.llama_token * n)()
        n = lib.llama_tokenize(self._vocab, data, len(data), buffer, n, False, special)
        if n < 0:
            buffer = (lib.llama_token * -n)()
            n = lib.llama_tokenize(self._vocab, data, len(data), buffer, -n, False, special)
        return list(buffer[:n])

    def piece(self, token: int) -> bytes:
        """Bytes of one token; control tokens have none."""
        piece = self._pieces.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(64)
            n = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
            piece = self._pieces[token] = buffer.raw[:n]
        return piece

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Bytes of a token sequence."""
        return b"".join(self.piece(t) for t in tokens)

    def token_text(self, token: int) -> str:
        """The token as the vocabulary spells it, control tokens included; "" for none."""
        if token < 0:
            return ""
        return str(lib.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace"))

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token as the vocabulary spells it: at least what it stands for."""
        texts = (lib.llama_vocab_get_text(self._vocab, t) for t in range(self.n_vocab))
        return max(len(text) for text in texts)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (llama_vocab_is_eog)."""
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    @property
    def vocab(self) -> Any:
        """llama.cpp's handle of the vocabulary."""
        return self._vocab

    @cached_property
    def ends(self) -> npt.NDArray[np.bool_]:
        """Whether each token ends a generation, shape (n_vocab,)."""
        return np.array([self.is_eog(token) for token in range(self.n_vocab)])

    def shows(self, token: int) -> bool:
        """Whether a token adds to a text or ends it; others do neither."""
        return self.is_eog(token) or not lib.llama_vocab_get_attr(self._vocab, token) & _HIDDEN

    @cached_property
    def is_shown(self) -> npt.NDArray[np.bool_]:
        """`shows` of every token, shape (n_vocab,)."""
        return np.array([self.shows(token) for token in range(self.n_vocab)])

    @property
    def bos(self) -> str:
        """Text of the beginning-of-sequence token, "" where there is none."""
        return self.token_text(lib.llama_vocab_bos(self._vocab))

    @property
    def bos_token(self) -> int | None:
        """The token that every prompt must begin with, or None."""
        if not lib.llama_vocab_get_add_bos(self._vocab):
            return None
        token = int(lib.llama_vocab_bos(self._vocab))
        return token if token >= 0 else None

    @property
    def eos(self) -> str:
        """Text of the end-of-sequence token, "" where there is none."""
        return self.token_text(lib.llama_vocab_eos(self._vocab))

    @property
    def end_of_turn_token(self) -> int:
        """The token that ends a turn: EOT, or EOS where the template writes only that; -1 for none.

        A file may name no EOT. llama.cpp then guesses among the likely ones, and
        where several exist (Qwen has <|im_end|> and <|endoftext|>) not always right.
        """
        eot, eos = int(lib.llama_vocab_eot(self._vocab)), int(lib.llama_vocab_eos(self._vocab))
        template = self.chat_template or ""
        writes_eos = eos >= 0 and (self.eos in template or "eos_token" in template)
        return eos if eot < 0 or (writes_eos and self.token_text(eot) not in template) else eot

    @property
    def end_of_turn(self) -> str:
        """Text of that token."""
        return self.token_text(self.end_of_turn_token)

    def shares_vocabulary(self, other: Model) -> bool:
        """Whether token ids mean the same in both models.

        Sizes may differ by the padding that families use (llama.cpp's own
        rule for draft models: up to 128 entries).
        """
        if lib.llama_vocab_type(self._vocab) != lib.llama_vocab_type(other._vocab):
            return False
        if abs(self.n_vocab - other.n_vocab) > 128:
            return False
        text = lib.llama_vocab_get_text
        ours, theirs = self._vocab, other._vocab
        return all(
            text(ours, i) == text(theirs, i) for i in range(min(self.n_vocab, other.n_vocab))
        )

    def close(self) -> None:
        """Free the weights; every context of the model must be closed before."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None
