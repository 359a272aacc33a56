"""A pool of questions with their programs, from a grammar."""

from __future__ import annotations

import csv
import gzip
import hashlib
from pathlib import Path

from jsonargparse.typing import NonNegativeFloat, PositiveInt
from tqdm import tqdm

from doppel.errors import UserError
from studies.structural_sampling.schema2qa import questions

#: Draws in a row that may all be known before the grammar counts as used up.
_PATIENCE = 100_000


def pool(*, out: Path, num: PositiveInt = 1_000_000, seed: int = 1, skew: NonNegativeFloat = 1.0) -> None:
    """Write distinct questions to a database, with their ThingTalk programs, from a grammar.

    A synthetic pool to choose from, as Oren et al. (2021) sample theirs. Its six domains, properties and operators are
    Schema2QA's; phrases, values and frequencies are this project's own (schema2qa.yaml). All of it
    is public. A million rows take two or three minutes and 200 MB of memory.

    Args:
        out: File to write: .tsv as Schema2QA publishes it (id, utterance, program, domain; no header), or .tsv.gz.
        num: Rows.
        seed: Equal seeds give equal rows; fewer rows are the first of more.
        skew: Exponent of the shapes' frequencies: 0 makes them equal, above 1 the frequent ones more frequent.

    Raises:
        UserError: The grammar has fewer distinct questions, or an option is out of range.
    """
    if not out.name.endswith((".tsv", ".tsv.gz")):
        raise UserError(f"--out {out}: give a .tsv or a .tsv.gz file")
    out.parent.mkdir(parents=True, exist_ok=True)
    part, known, since = out.with_name(f"{out.name}.part"), set[bytes](), 0
    opened = gzip.open if out.suffix == ".gz" else open
    with opened(part, "wt", encoding="utf-8", newline="") as file, tqdm(total=num, unit="row", disable=None) as bar:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        for utterance, program, domain in questions(seed, skew):
            key = hashlib.blake2b(f"{utterance}\t{program}".encode(), digest_size=12).digest()
            since += 1
            if key in known:
                if since > _PATIENCE:
                    raise UserError(f"the grammar has hardly more than {len(known)} questions: ask for fewer")
                continue
            known.add(key)
            writer.writerow([f"{domain}-{len(known)}", utterance, program, domain])
            bar.update()
            since = 0
            if len(known) == num:
                break
    part.replace(out)
    print(f"{out}: {num} distinct questions")
