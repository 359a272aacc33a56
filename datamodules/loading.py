"""From a file to encoded turns: read, select, encode; once, for the result is cached."""

from __future__ import annotations

from datamodules.cache import cached
from datamodules.codec import Codec
from datamodules.columns import Columns
from datamodules.encoded_turns import EncodedTurns, encode_turns
from datamodules.readers import Unit, content_digest, read_turns
from datamodules.selection import Selection


def load_encoded(
    path: str,
    codec: Codec,
    unit: Unit,
    cache_dir: str | None = None,
    selection: Selection | None = None,
    columns: Columns | None = None,
) -> EncodedTurns:
    """Encoded turns of a file.

    The key of the cache covers the content of the file, the codec (tokenizer, fields, longest length), the unit, the
    selection and the columns.

    Args:
        path: As for :func:`datamodules.readers.read_turns`.
        codec: Text format of the model.
        unit: Privacy unit.
        cache_dir: Folder of the cache, see :func:`datamodules.cache.cached`.
        selection: What is made of the turns before they are tokenised; None takes all as they are.
        columns: What the columns of the file are called; None for the usual names.

    Raises:
        DataError: The input cannot be used, a turn lacks what the model needs, or the cache folder cannot be written.
    """
    selection = selection or Selection()

    def build() -> EncodedTurns:
        needs = codec.needs if selection.keep_function is None else ()  # which drops the turns without a tree
        turns = read_turns(path, unit, needs=needs, columns=columns)
        return encode_turns(selection.apply(turns, path, unit), codec)

    return cached([content_digest(path, selection, columns), codec.fingerprint(), unit], build, cache_dir)
