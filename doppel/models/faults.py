"""What loading a model ends in that is not whole, in one line: its own reason, or what is known to lie behind it."""

from __future__ import annotations

import pickle
from pathlib import Path

from safetensors import SafetensorError

from doppel.errors import UserError
from doppel.models.made import how_to_make

#: How a file begins that Git LFS has not fetched, and the most bytes that it has.
_POINTER, _POINTER_BYTES = b"version https://git-lfs", 1024
#: What loading from a folder ends in that is not as the library expects it.
FAILURES = (
    OSError,
    pickle.UnpicklingError,
    ValueError,
    ImportError,
    RuntimeError,
    KeyError,
    TypeError,
    AttributeError,
    SafetensorError,
    EOFError,
)
#: What :func:`cannot` calls a folder of them.
LORA = "LoRA weights"


class ModelError(UserError):
    """A model cannot be loaded, or lacks what is asked of it."""


def cannot(what: str, name: str, error: Exception) -> ModelError:
    """Return the error for a model that a library gave up on.

    Args:
        what: What was to be loaded, such as ``tokenizer``.
        name: Folder or hub name of the model.
        error: Of the library.
    """
    folder = Path(name).expanduser()
    if (command := how_to_make(folder)) is not None:
        return ModelError(command)
    if not folder.exists() and is_no_hub_name(name):
        return ModelError(f"cannot load the {what} of {name!r}: there is no such folder; give a model's, or a hub name")
    where = f"the folder {name!r}" if folder.exists() else f"{name!r}, no local folder, from the Hugging Face hub"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = " ".join(lines[:2]).partition(" Model type should be")[0][:300].rstrip(".:, ")
    if (pointer := _pointer_in(folder)) is not None:
        reason = f"{pointer} is a pointer that Git LFS has not followed: run `git lfs pull` there"
    elif "trust_remote_code" in str(error):
        reason = "it needs code of its own, which is never run: give a model of a family that transformers knows"
    elif isinstance(error, pickle.UnpicklingError):
        reason = (
            "its weights are a pickle that holds more than weights: save them as model.safetensors (save_pretrained)"
        )
    elif isinstance(error, SafetensorError):
        reason = f"a file of its weights is damaged: copy it again ({reason})"
    elif what == LORA:
        pass  # the reason says it
    elif not (folder / "config.json").is_file() or (what == "tokenizer" and not (folder / "tokenizer.json").is_file()):
        reason = (
            "give a folder that holds config.json, model.safetensors and tokenizer.json (the shipped one is "
            f"models/base), or a hub name such as gpt2 on a machine that reaches the hub ({reason})"
        )
    elif isinstance(error, KeyError | AttributeError | TypeError | EOFError) or "line 1 column" in reason:
        kind = "tokenizer.json" if what == "tokenizer" else "config.json, or a file of its weights,"
        reason = f"{kind} is damaged: copy it again ({type(error).__name__}: {reason})"
    return ModelError(f"cannot load the {what} of {where}: {reason}")


def is_no_hub_name(name: str) -> bool:
    """Return whether a name can only be that of a folder: a path, or of a model that a command makes."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or how_to_make(Path(name).expanduser()) is not None


def _pointer_in(folder: Path) -> str | None:
    """The first file of a folder that is a pointer of Git LFS."""
    if not folder.is_dir():
        return None
    small = (file for file in sorted(folder.iterdir()) if file.is_file() and file.stat().st_size <= _POINTER_BYTES)
    return next((file.name for file in small if file.read_bytes().startswith(_POINTER)), None)
