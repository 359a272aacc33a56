"""The fluency sifter: a language model of public utterances that tells text from noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commands.lightning.trained_model import trained_model
from commands.pipeline.run_record import StageConfig
from doppel.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_modules.causal_lm import CausalLM


class SifterError(UserError):
    """The sifter cannot be loaded, or must not be used."""


class Sifter:
    """An ``UtteranceLM`` that scores texts.

    Formal guarantees:
        A sifter that was trained on public turns alone says nothing about private ones, so what it says of samples is
        post-processing. Trained without DP on the candidates' private data it would leak; that is refused where the
        sifter's configuration shows it (the same file), but a part of that file under another name cannot be told.

    Args:
        path: A model folder or hub name, a run folder of ``fit``, or a checkpoint in one.

    Raises:
        SifterError: There is nothing of the kind.
    """

    def __init__(self, path: str) -> None:
        from lightning_modules.utterance_lm import UtteranceLM

        self.path = path
        self.config: StageConfig | None = None
        file = Path(path).expanduser()
        if (file / "checkpoints" / "last.ckpt").is_file():
            file = file / "checkpoints" / "last.ckpt"
        is_checkpoint = file.is_file()
        self.model: CausalLM = self._load(file) if is_checkpoint else UtteranceLM(base_model=path, test_metrics=False)
        self.model.eval()

    def check_is_public(self, fingerprints: Collection[str]) -> bool:
        """Refuse a sifter that learnt without DP from the candidates' private data, which have these fingerprints.

        Returns:
            Whether it could be checked: a model folder does not tell what it learnt from.
        """
        if self.config is None or not self.config.data.get("train_path"):
            return False
        if self.config.privacy is not None:
            return True
        try:
            own = self.config.fingerprint()
        except DataError:
            return False  # its file is gone, or a variable in its path is not set
        if own in fingerprints:
            raise SifterError(
                f"the sifter {self.path} was trained without DP on {self.config.data['train_path']}, the private data "
                "of the candidates: what it says would leak. Train it on public turns, as the experiment sifter does"
            )
        return True

    def losses(self, texts: Sequence[str]) -> Tensor:
        """Mean negative log-likelihood of each text in nats per token, end of text included, shape [num_texts].

        A text longer than the model's positions is judged by its beginning.
        """
        from doppel.metrics.fluency import text_losses

        codec = self.model.codec
        prompt = codec.encode_prompt(None)
        examples = [[*prompt, *ids, codec.eos_id][: codec.max_length] for ids in codec.tokenize(list(texts))]
        return text_losses(self.model.model, examples, len(prompt))

    def _load(self, file: Path) -> CausalLM:
        folder = file.parent.parent
        if not (folder / "config.yaml").is_file():
            raise SifterError(
                f"{file} has no {folder}/config.yaml: give a checkpoint in its run folder, or a model folder"
            )
        self.config = StageConfig.read(folder)
        class_path = self.config.content["model"]["class_path"]
        if "UtteranceLM" not in class_path:
            raise SifterError(f"{file} is a {class_path}: the sifter must be an UtteranceLM")
        return trained_model(file, self.config)
