"""Words that nobody expected: released once of private units, and samples that say them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from commands.privacy.stage_release import StageRelease
from commands.run_folder.ownership import hold
from commands.run_folder.private_files import of_runs
from commands.run_folder.stage_config import StageConfig
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import Columns, reference_columns
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.files import read_json_lines, write_json, write_json_lines
from doppel.privacy.histogram import unit_sums
from doppel.text.unexpected import ENGLISH, NoisyWords, UnexpectedWords, read_vocabulary
from doppel.text.words import words_of

#: What the ledger calls the release.
STAGE = "words"


def words(
    stage_dir: Path,
    *,
    reference: str,
    out: Path,
    per_unit: PositiveInt = 2,
    vocabulary: Path | None = None,
    data: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
) -> None:
    """Release the words that private requests say and the public reference hardly does.

    Formal guarantees:
        One Gaussian release of sensitivity 1 (:mod:`doppel.text.unexpected`) under the noise that the stage announced
        (words_noise_multiplier), q = 1, in its scope. Choices of units and sums without noise stay in the memory of
        this process. What is shown is computed from the noisy sums, the vocabulary and the reference, and leaves it in
        the line of the ledger that pays, once (:meth:`StageRelease.once`). Where that left it out, nothing is written.

    Args:
        stage_dir: Folder of the trained stage, whose turns, unit and budget these are.
        reference: Public requests.
        out: JSON to write: the words with their shares, and what a word needs to be shown.
        per_unit: Words that a unit gives, at most.
        vocabulary: Public words, one a line, of which the earlier are given rather; by default 160,231 English ones.
        data: Arguments of the data module where nothing is trained, as JSON.
        privacy: Budget, likewise.

    Raises:
        UserError: The stage announced no such release, or the reference says what a private file does.
        BudgetExceededError: It alone costs more than its scope may spend.
    """
    config = None if data is None else StageConfig({"data": {"init_args": data}, "privacy": privacy})
    with hold(stage_dir):
        made = StageRelease.declare(stage_dir, "words", False, STAGE, NoisyWords, config)
        assert (sigma := made.sigma) is not None, "a stage without noise announced no words"

        def numbers() -> dict[str, Any]:
            columns = reference_columns(Columns.from_config((config or StageConfig.read(stage_dir)).data))
            refuse_private([("reference", reference, columns)], of_runs(stage_dir, if_private=True))
            public = [turn.utterance for turn in read_examples(expand_path(reference), "utterance", columns=columns)]
            rule = UnexpectedWords(read_vocabulary(vocabulary or ENGLISH), public, per_unit, made.unit != "utterance")
            vectors = rule.vectors((turn.unit, turn.utterance) for turn in made.turns)
            sums = NoisyWords(sigma).draw(unit_sums(vectors, rule.bins))
            found = rule.found(sums, made.num_units, sigma)
            return {"per_unit": per_unit, **asdict(found)}

        content = made.once(numbers)
        if content is None:
            return
        write_json(out, content)
    print(f"{out}: {len(content['words'])} words that nobody expected (each from {content['least']:.2%} of the units)")


def keep_saying(samples: Path, *, say: list[str], out: Path, num: PositiveInt) -> None:
    """Keep samples that say all of some words.

    Args:
        samples: JSON lines of samples.
        say: Words, each to be in a sample.
        out: JSON lines to write: the first ones that say them, in the order in which the model wrote them.
        num: How many, at most.
    """
    wanted = set(say)
    found = [line for _, line in read_json_lines(samples) if wanted <= set(words_of(str(line.get("utterance"))))]
    write_json_lines(out, found[:num])
    print(f"{out}: {len(found[:num])} of {num} samples that say {', '.join(say)}")
