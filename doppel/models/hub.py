"""What the Hugging Face hub gives, or has given to this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

#: Seconds after which a hub that does not answer is taken to give nothing.
_PATIENCE = 10


def is_hub_name(name: str) -> bool:
    """Return whether a name may be one on the hub, and is no path."""
    return not name.startswith((".", "/", "~")) and name.count("/") < 2


def given(name: str, file: str) -> Path | None:
    """Return where a file of a model lies that the hub has given before; None where it has not."""
    from huggingface_hub import try_to_load_from_cache  # which takes long to import

    found = try_to_load_from_cache(name, file) if is_hub_name(name) else None
    return Path(found) if isinstance(found, str) else None


def gives(name: str, file: str) -> bool:
    """Return whether the hub gives a file of a model, or has given it before.

    It is asked once: its library goes on asking one that does not answer.
    """
    if not is_hub_name(name):
        return False
    from huggingface_hub import hf_hub_url, is_offline_mode
    from huggingface_hub.utils import build_hf_headers

    with suppress(OSError, ValueError):
        if given(name, file) is not None:
            return True
        asked = Request(hf_hub_url(name, file), headers=build_hf_headers(), method="HEAD")
        return not is_offline_mode() and bool(urlopen(asked, timeout=_PATIENCE).status < 400)
    return False


def fetched(name: str, files: tuple[str, ...]) -> Path | None:
    """Return the folder of a model's files, fetched as far as they are not here; None where the hub gives none.

    Args:
        name: On the hub.
        files: Patterns of their names.
    """
    from huggingface_hub import snapshot_download

    with suppress(OSError, ValueError):
        return Path(snapshot_download(name, allow_patterns=list(files)))
    return None
