"""The fluency sifter: a language model of public utterances that tells text from noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from doppel.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_modules.utterance_lm import UtteranceLM


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
        self.path = path
        self.config: dict[str, Any] = {}
        file = Path(path).expanduser()
        if file.is_dir() and (file / "checkpoints" / "last.ckpt").is_file():
            file = file / "checkpoints" / "last.ckpt"
        self.model = self._from_checkpoint(file) if file.is_file() else self._from_folder(path)
        self.model.eval()

    def check_is_public(self, fingerprints: Collection[str]) -> bool:
        """Refuse a sifter that learnt the candidates' private data without the privacy callback.

        Args:
            fingerprints: Of the candidates' private data.

        Returns:
            Whether it could be checked: a model folder does not tell what it learnt from.

        Raises:
            SifterError: It did.
        """
        from datamodules.readers import data_fingerprint, expand_path
        from datamodules.selection import Selection

        init = self.config.get("data", {}).get("init_args", {})
        is_private = any("DifferentialPrivacy" in str(c) for c in self.config.get("trainer", {}).get("callbacks") or ())
        if is_private:
            return True
        if not init.get("train_path"):
            return False
        try:
            own = data_fingerprint(expand_path(init["train_path"]), Selection.from_config(init))
        except DataError:
            return False  # its file is gone, or a variable in its path is not set
        if own in fingerprints:
            raise SifterError(
                f"the sifter {self.path} was trained without DP on {init['train_path']}, the private data of the "
                "candidates: what it says would leak. Train it on public turns, as configs/experiments/selection does"
            )
        return True

    def losses(self, texts: Sequence[str]) -> Tensor:
        """Mean negative log-likelihood of each text in nats per token, end of text included, shape [num_texts].

        A text longer than the model's positions is judged by its beginning.
        """
        from doppel.metrics.fluency import text_losses

        codec = self.model.codec
        examples = [[codec.bos_id, *ids, codec.eos_id] for ids in codec.tokenize(list(texts))]
        return text_losses(self.model.model, [ids[: codec.max_length] for ids in examples])

    def _from_folder(self, path: str) -> UtteranceLM:
        from lightning_modules.utterance_lm import UtteranceLM

        return UtteranceLM(base_model=path, test_metrics=False)

    def _from_checkpoint(self, file: Path) -> UtteranceLM:
        from lightning_modules.lora import LoraArguments
        from lightning_modules.utterance_lm import UtteranceLM
        from lightning_modules.warm_start import WarmStart

        config = file.parent.parent / "config.yaml"
        if not config.is_file():
            raise SifterError(f"{file} has no {config}: give a checkpoint in its run folder, or a model folder")
        self.config = yaml.safe_load(config.read_text(encoding="utf-8"))
        init = self.config["model"]["init_args"]
        if "UtteranceLM" not in self.config["model"]["class_path"]:
            raise SifterError(f"{file} is a {self.config['model']['class_path']}: the sifter must be an UtteranceLM")
        model = UtteranceLM(
            base_model=init["base_model"],
            max_length=init.get("max_length"),
            lora=LoraArguments(**init["lora"]) if init.get("lora") else None,
            test_metrics=False,
        )
        start = WarmStart.read(str(file))
        start.check_text_format(model.codec)
        start.load_into(model.model)
        return model
