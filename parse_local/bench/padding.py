"""A target with its own answers at k times its cost, to measure what a larger target would pay.

Blocks are appended whose output projections are zero: what they add to the residual
stream is zero, so every logit stays what it was, and the work is real. Such a file says
in its name that it is padded; no figure measured with it is one of a larger model's judgement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parse_local.errors import ModelError, UsageError

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter, ReaderTensor

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_WRITES_BACK = (
    "attn_output.weight",
    "attn_output.bias",
    "ffn_down.weight",
    "ffn_down.bias",
    "ffn_down_exps.weight",
    "ffn_down_exps.bias",
    "ffn_down_shexp.weight",
)
# What a block adds to the residual stream goes through these; zero bytes are zero in every type.
_NEEDED = ("attn_output.weight",)
MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS."""


def pad(source: Path, out: Path, k: float) -> int:
    """Write `source` with blocks appended until a token reads `k` times as many bytes of weights.

    Args:
        source: a GGUF of a model with plain attention blocks, in one file.
        out: the file to write; appears only when complete.
        k: cost as a multiple, at least 1; reached to half a block.

    Returns:
        How many blocks were appended.

    Raises:
        UsageError: `k` is out of range, or the file cannot be written.
        ModelError: the file is no GGUF, or its blocks are not of the kind that can be padded.
    """
    from gguf import GGUFReader, GGUFWriter

    if not k >= 1:
        raise UsageError(f"The cost must be at least 1 times the target's own, not {k}.")
    try:
        reader = GGUFReader(source)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{source} cannot be read as a GGUF file: {error}.") from error
    arch = reader.fields["general.architecture"].contents()
    blocks = _blocks(reader, source)
    n_more = _n_more(reader, blocks, k)
    n_layer = len(blocks) + n_more
    if n_layer > MAX_LAYERS:
        raise UsageError(f"{k} times would be {n_layer} blocks; llama.cpp takes {MAX_LAYERS}.")
    part = out.with_name(out.name + ".part")
    writer = GGUFWriter(part, arch)
    try:
        _copy_metadata(reader, writer, arch, len(blocks), n_layer, k)
        for tensor in reader.tensors:
            add_tensor(writer, tensor.name, tensor.data, tensor)
        for i in range(n_more):
            for name, tensor in blocks[i % len(blocks)].items():
                zero = name in _WRITES_BACK
                data = np.zeros_like(tensor.data) if zero else tensor.data
                add_tensor(writer, f"blk.{len(blocks) + i}.{name}", data, tensor)
        write_file(writer)
        part.replace(out)
    except OSError as error:
        raise UsageError(f"Cannot write {out}: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return n_more


def _blocks(reader: GGUFReader, source: Path) -> list[dict[str, ReaderTensor]]:
    found: dict[int, dict[str, ReaderTensor]] = {}
    for tensor in reader.tensors:
        if match := _BLOCK.fullmatch(tensor.name):
            found.setdefault(int(match[1]), {})[match[2]] = tensor
    blocks = [found[i] for i in sorted(found)]
    plain = all(name in block for block in blocks for name in _NEEDED)
    if not blocks or not plain:
        raise ModelError(
            f"{source.name} cannot be padded: its blocks are not all plain attention blocks."
        )
    return blocks


def _n_more(reader: GGUFReader, blocks: list[dict[str, ReaderTensor]], k: float) -> int:
    # One decoded token reads every block and the output matrix, which is the
    # embedding's where there is no other.
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    per_block = sum(int(t.n_bytes) for b in blocks for t in b.values()) / len(blocks)
    output = sizes.get("output.weight", sizes.get("token_embd.weight", 0))
    return round((k - 1) * (len(blocks) * per_block + output) / per_block)


def _copy_metadata(
    reader: GGUFReader, writer: GGUFWriter, arch: str, n_layer: int, n_padded: int, k: float
) -> None:
    for name, value, types in copy_fields(reader):
        if name == f"{arch}.block_count":
            value = n_padded
        elif name == "general.name":
            value = f"{value} padded {k:g}x"
        elif len(types) > 1 and name.startswith(f"{arch}.") and len(value) == n_layer:
            value = [value[i % n_layer] for i in range(n_padded)]  # one value a block
        add_field(writer, name, value, types)


def copy_fields(reader: GGUFReader) -> Iterator[tuple[str, Any, list[Any]]]:
    """Name, value and types of the metadata that a copy of a file has to be given."""
    for name, field in reader.fields.items():
        # The writer makes these itself.
        if not name.startswith("GGUF.") and name != "general.architecture":
            yield name, field.contents(), field.types


def add_tensor(writer: GGUFWriter, name: str, data: Any, like: ReaderTensor) -> None:
    """Add a tensor of the same type as another file's."""
    writer.add_tensor(name, data, raw_dtype=like.tensor_type)


def add_field(writer: GGUFWriter, name: str, value: Any, types: Sequence[Any]) -> None:
    """Add a piece of metadata with the types that `copy_fields` gave."""
    writer.add_key_value(name, value, types[0], types[-1] if len(types) > 1 else None)


def write_file(writer: GGUFWriter) -> None:
    """Write what was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
