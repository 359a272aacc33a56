"""Prompts for ``predict``: the trees that an earlier stage wrote, or nothing at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

from datamodules.batches.batch import PromptBatch
from datamodules.data_module import PredictionDataModule, check_limits
from datamodules.private_data import is_disclosable
from datamodules.reading.example import Field
from doppel.errors import DataError
from doppel.files import read_json_lines
from doppel.privacy.fingerprint import keyed_fingerprint


class PromptDataModule(PredictionDataModule):
    """Prompts in batches of similar length, sharded by rank, less those already answered.

    Sample ``i`` uses prompt ``i`` of the file, from its start again when the prompts are used up. A label that stands
    beside a tree goes on to the line of its sample.

    *Privacy.* A prompt stands in the line of its sample, so it has to be public, or a release of a run. The command
    line asks for that before a model samples anything (:func:`commands.lightning.prompts.check_prompts`).

    Args:
        prompts_path: JSON lines with what the model is conditioned on, as the tree stage writes them; null for
            unconditional models.
        num_samples: Number of samples, over all ranks; null for one for each prompt of the file.
        batch_size: Most samples asked for together on a rank; they are on disk when all of them are drawn. Many more
            than the model's ``sampling.max_rows``, so that texts that end make room for others; fewer where all ranks
            would not have a batch each.
        is_public: Whether anybody may see the prompts, which then need not be those of a run.
    """

    def __init__(
        self,
        prompts_path: str | None = None,
        num_samples: int | None = None,
        batch_size: int = 512,
        is_public: bool = False,
    ) -> None:
        super().__init__(batch_size)
        if num_samples is None and prompts_path is None:
            raise DataError("neither num_samples nor prompts_path is set: say how many samples to draw")
        check_limits(num_samples=num_samples)
        self.prompts_path = prompts_path
        self.num_samples = num_samples
        self.is_public = is_public
        self.is_released = prompts_path is None  # what the weights say by themselves
        self._prompts: list[str | None] = []
        self._input_ids: list[list[int]] = []
        self._fields: list[dict[str, str]] = [{}]

    def setup(self, stage: str) -> None:
        """Read and tokenise the prompts; later calls reuse them."""
        text_format = self.require_text_format()
        if self._prompts:
            return
        if self.prompts_path is None and text_format.source is not None:
            raise DataError(
                f"the model writes {text_format.target!r} given {text_format.source!r}, but prompts_path is not set: "
                "give the file of the stage before"
            )
        if self.prompts_path is None:
            self._prompts, self._input_ids = [None], [text_format.encode_prompt(None)]
            return
        if text_format.source is None:
            raise DataError(
                f"prompts_path is {self.prompts_path}, but the model takes no prompt: remove it, "
                "or use a model with a source"
            )
        path = Path(self.prompts_path)
        if not path.is_file():
            raise DataError(f"no prompts at {path}: run the stage that writes them first, or correct prompts_path")
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        self.prompts_digest = digest if is_disclosable(self) else keyed_fingerprint(digest)
        texts, fields = _read_prompts(path, content, text_format.source)
        self._prompts, self._fields = list(texts[: self.num_samples]), fields[: self.num_samples]
        self._input_ids = text_format.encode_prompts(self._prompts)

    @property
    def num_total(self) -> int:
        """Samples over all ranks, with those already written; known after ``setup``."""
        return self.num_samples if self.num_samples is not None else len(self._prompts)

    def length(self, index: int) -> int:
        """Return the number of tokens of a sample's prompt."""
        return len(self._input_ids[index % len(self._prompts)])

    def make(self, indices: list[int]) -> PromptBatch:
        """Build the batch of some samples."""
        used = [index % len(self._prompts) for index in indices]
        prompts, fields = [self._prompts[i] for i in used], [self._fields[i] for i in used]
        return PromptBatch(indices, prompts, [self._input_ids[i] for i in used], fields)


def _read_prompts(path: Path, content: bytes, field: Field) -> tuple[list[str], list[dict[str, str]]]:
    """The named field of every line, and the label that stands beside a tree.

    Raises:
        DataError: The file is empty, or a line is broken or lacks the field.
    """
    prompts, fields = list[str](), list[dict[str, str]]()
    for number, record in read_json_lines(path, content):
        prompt = record.get(field)
        if not isinstance(prompt, str):
            raise DataError(f"no {field!r} as a string: every line needs one", about=f"{path}:{number}")
        prompts.append(prompt)
        label = record.get("label")
        fields.append({"label": label} if field == "parse" and isinstance(label, str) else {})
    if not prompts:
        raise DataError(f"{path} holds no prompt: run the stage that writes them again")
    return prompts, fields
