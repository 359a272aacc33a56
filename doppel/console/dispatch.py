"""One entry point of many commands, of which none is imported before it is asked for."""

from __future__ import annotations

import ast
import difflib
import errno
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from doppel.console.again import stop_when_told
from doppel.console.command import call, load, reads_words
from doppel.console.tasks import WORK, words_of_task
from doppel.errors import UserError
from doppel.garbage import no_collection

Groups = Mapping[str, Mapping[str, str]]
"""Heading → name of each command → ``"module:function"``."""

_NOT_OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

#: What keeps packages from saying what is not ours.
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def main(
    commands: Groups,
    about: str,
    prog: str,
    argv: Sequence[str] | None = None,
    more: Groups | None = None,
    steps: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> int:
    """Run one command.

    A command is a function with a docstring; :func:`~doppel.console.command.command_parser` says how its signature
    becomes options. A function whose one parameter is called ``argv`` reads its words itself.

    Args:
        commands: What ``--help`` lists.
        about: What stands above the list.
        prog: How the entry point is called.
        argv: Arguments without the program's name; ``sys.argv`` by default.
        more: What ``--help all`` lists too.
        steps: What ``PROG step NAME`` calls beside these, and no list shows. Of several tasks the first one calls it,
            and the others :data:`~doppel.console.tasks.WORK`, which is one of these.
        aliases: Other name of a command → its name; no list shows them.

    Returns:
        Exit status: that of the command, or 2 after a one-line error that the user can mend.
    """
    words, more = list(sys.argv[1:] if argv is None else argv), more or {}
    targets = {name: target for group in (*commands.values(), *more.values()) for name, target in group.items()}
    os.umask(0o077)  # run folders and caches hold private text: readable by their owner alone
    os.environ.update(QUIET | dict(os.environ))
    _take_any_console()
    try:
        if not words or words[0] in ("-h", "--help"):
            has_more = bool(more) and words[1:] != ["all"]
            hint = f"\n`{prog} --help all` lists {len(targets)} commands.\n" if has_more else ""
            sys.stdout.write(overview(commands if has_more else {**commands, **more}, about) + hint)
            return 0
        if words[0] == "step" and steps:
            words, targets, prog = words_of_task(words[1:] or ["--help"]), {**targets, **steps}, f"{prog} step"
            if words != [WORK]:  # a task that works for the first one ends with it
                stop_when_told()
        if words == ["--help"]:
            sys.stdout.write(overview({"Steps of a run": steps or {}}, f"{prog} NAME --config FILE"))
            return 0
        name, *rest = words
        name = (aliases or {}).get(name, name)
        if name not in targets:
            nearest = difflib.get_close_matches(name, targets, n=1)
            nearest = [f"step {name}"] if name in (steps or {}) else nearest
            hint = f"did you mean {nearest[0]}?" if nearest else f"`{prog} --help` lists them"
            raise UserError(f"there is no command {name!r}: {hint}")
        with no_collection():
            function = load(targets[name])
        return (function(rest) or 0) if reads_words(function) else call(function, rest, f"{prog} {name}")
    except (UserError, ValueError, OSError) as error:
        message = _message(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        return 2


def _take_any_console() -> None:
    """Let no console and no wish for warnings end a command, of which some is paid: neither is ours to foresee.

    What an output cannot encode, as ASCII cannot ε, becomes a question mark; and where warnings were to be errors, as
    ``PYTHONWARNINGS=error`` has it, those of packages are shown, here and in every process that this one starts.
    """
    for stream in (sys.stdout, sys.stderr):
        if not str(stream.encoding or "utf-8").lower().startswith("utf") and hasattr(stream, "reconfigure"):
            os.environ["PYTHONIOENCODING"] = f"{stream.encoding}:replace"
            with suppress(OSError):  # what was a file is a pipe now, as of a step; it begins with the variable
                stream.reconfigure(errors="replace")
    if any(action.startswith("error") for action in sys.warnoptions):
        os.environ["PYTHONWARNINGS"] = "default"
        warnings.resetwarnings()
        warnings.simplefilter("default")


def overview(commands: Groups, about: str) -> str:
    """List each group with its commands and the first line of their docstrings; imports no command."""
    width = max(len(name) for group in commands.values() for name in group)
    lines = [about.strip()]
    for heading, group in commands.items():
        lines += ["", f"{heading}:", *(f"  {name:{width}}  {_summary(target)}" for name, target in group.items())]
    return "\n".join(lines) + "\n"


def _summary(target: str) -> str:
    """First line of the docstring of ``"module:function"``: read from the source, which is not run."""
    module, _, function = target.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no module {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (node,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _message(error: Exception) -> str | None:
    """What to tell the user of an error that is not the program's; None for one that is."""
    mendable = error if isinstance(error, UserError) else error.__cause__  # jsonargparse wraps what __init__ raises
    if isinstance(mendable, UserError):
        return str(mendable)
    if isinstance(error, OSError) and error.errno in _NOT_OURS:
        return f"{error.filename or 'the disk'}: {error.strerror}"
    return None
