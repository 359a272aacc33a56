"""Samples that evolve by private votes: the step of the system ``evolution``."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from commands.privacy.embedded_parts import forget_embedded, in_parts, keep_beside
from commands.privacy.evolution_settings import BASE, CONTINUATION, EXAMPLES, GRAMMAR, Evolution
from commands.privacy.feature_extractors import embed, form_of
from commands.privacy.histogram import read_labels
from commands.privacy.rows_card import refuse_unpaid_rows
from commands.privacy.stage_release import read_private
from commands.privacy.vote_releases import VoteReleases
from commands.run_folder.ownership import hold, ledger_of_run
from datamodules.guards.overlap import refuse_private
from datamodules.reading.attribute_codes import control_code
from datamodules.reading.columns import Columns, ReferenceColumns, reference_columns, rows_of
from datamodules.reading.examples import iter_examples
from datamodules.reading.files import expand_path
from datamodules.reading.records import read_records
from datamodules.training_rows import TrainingRows
from doppel.errors import DataError, UserError
from doppel.evolution.candidates import Prompt
from doppel.evolution.evolve import Plan, first_texts
from doppel.evolution.evolve import evolve as run_rounds
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.asking import AskedModel, Model
from doppel.evolution.generators.donations import Donation
from doppel.evolution.generators.protocol import Generator
from doppel.files import try_folder, whole_file, write_json
from doppel.privacy.card import origins_of
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments
from doppel.tables.schema import as_word
from doppel.text.topics import Floats

#: Texts of the reference that are read; and fewer say nothing.
_PUBLIC, _FEW_TEXTS = 1000, 8


def evolve(
    folder: Path,
    *,
    out: Path,
    num_samples: PositiveInt,
    data: dict[str, Any],
    settings: Evolution,
    privacy: PrivacyArguments | None = None,
    labels: Path | None = None,
    reference: str | None = None,
    seed: int = 1,
) -> None:
    """Let texts of a public model evolve by the votes of private ones.

    The generator writes texts, private texts vote for the nearest of them, the votes get noise, and the chosen texts
    are varied for the next round. No private text reaches the generator, and no round is read before the ledger has
    paid for it. What was released stands in the ledger, what the generator answered in FOLDER/answers.jsonl:
    the same command again asks for nothing twice and spends nothing twice.

    Args:
        folder: Folder of this step, RUN/evolution.
        out: JSON lines of samples to write.
        num_samples: Samples.
        data: Arguments of the data module, as JSON: train_path, unit, columns.
        settings: The field "evolution" of the experiment, as JSON.
        privacy: Budget, as JSON; left out, votes have no noise: NOT PRIVATE.
        labels: File of all labels there are, one a line; a public list.
        reference: Public human turns: examples for the generator, if none are named, and what its first texts are
            compared with.
        seed: Public seed of prompts, clusters and draws, never of the noise.

    Raises:
        UserError: An input cannot be used, or the generator fails.
        BudgetExceededError: The budget does not afford a round.
    """
    _refuse_private(data, settings, reference)
    names = read_labels(labels) if labels is not None and settings.per_label else None
    warnings.filterwarnings("ignore", r"delta \S+ is large", UserWarning)  # said when the files are read
    public = read_public(reference, data)
    donations = read_donations(settings.examples, data) or public
    try_folder(folder)
    with hold(folder):
        ledger = None if privacy is None else Ledger(ledger_of_run(folder, privacy.ledger_path))
        turns = read_private(data, needs_label=names is not None)
        form = partial(form_of, settings.encoder)
        read = partial(embed, encoder=settings.encoder, independent=True)

        def embed_own(texts: Sequence[str]) -> Floats:
            return in_parts(texts, form, folder, read)

        votes = VoteReleases(turns, TrainingRows.from_config(data), settings, names, embed_own, ledger, privacy)
        votes.open()
        if ledger is not None and privacy is not None:
            note_origins(settings, ledger, privacy.scope)
            if settings.rows is not None:
                refuse_unpaid_rows(Path(expand_path(settings.rows)), ledger, privacy.scope)
        if votes.num_lost:
            print(f"   {votes.num_lost} of {settings.rounds} rounds were spent and lost by an interruption")
        answers = Answers(folder / "answers.jsonl", _identity(settings))
        plan = Plan(num_samples, settings.variations, settings.clusters, seed)
        generator, rows = generator_of(settings, answers, donations), read_rows(settings.rows)
        is_new = not votes.has_paid
        if settings.generator != GRAMMAR:
            warn_of(first_texts(plan, generator, names, rows, is_new), [own.text for own in public])
        elif is_new:  # by one of its own, for a grammar varies a text by what it wrote first, also as the run goes on
            first_texts(plan, generator_of(settings, answers, donations), names, rows)
        found = run_rounds(
            plan,
            generator,
            votes,
            partial(embed, encoder=settings.encoder, keep=keep_beside(out)),
            rows,
            lambda sentence: print(f"   {sentence}", flush=True),
        )
        lines = [{"utterance": own.text, **_asked_with(own.prompt, names), "stage": "evolution"} for own in found]
        content = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
        votes.note(hashlib.sha256(content).hexdigest())
        thrown = generator.thrown_away() if isinstance(generator, AskedModel) else {}
        if thrown:
            reasons = ", ".join(f"{number} {why}" for why, number in thrown.items())
            print(f"   {sum(thrown.values())} of {len(answers)} answers of the generator were thrown away: {reasons}")
        told = {
            "num_samples": len(found),
            "num_repeated": len(found) - len({own.text for own in found}),
            "num_rounds": votes.rounds,
            "num_lost_rounds": votes.num_lost,
            "noise_multiplier": votes.noise_multiplier,
            "num_answers": len(answers),
            "num_thrown_away": thrown,
            **{f"spent_{name}": value for name, value in answers.spent.items()},
        }
        write_json(f"{out}.evolution.json", told)
        with whole_file(out) as file:
            file.write(content)
        forget_embedded(folder)
        forget_embedded(out.parent, out.name)
    noise = "no noise: NOT PRIVATE" if ledger is None else f"noise of standard deviation {told['noise_multiplier']:.3f}"
    print(f"{out}: {len(found)} samples after {votes.rounds} rounds ({noise})")


def _refuse_private(data: Mapping[str, Any], settings: Evolution, reference: str | None) -> None:
    """Refuse public files that are the private one.

    Formal guarantees:
        Texts of the reference and donated examples are shown to the generator word by word: they are out of what the
        guarantee protects.

    Raises:
        UserError: One is, in whatever form.
    """
    columns = Columns.from_config(data)
    used = reference_columns(columns)
    public = [("--reference", reference, used), ("evolution.examples", settings.examples, used)]
    refuse_private(public, [(data["train_path"], columns)])


def _asked_with(prompt: Prompt, labels: Sequence[str] | None) -> dict[str, str | None]:
    """The public label and the released row that a text was asked with, for its line."""
    own: dict[str, str | None] = {"label": prompt.label} if labels else {}
    return own | ({"attributes": control_code(dict(prompt.attributes))} if prompt.attributes else {})


def note_origins(settings: Evolution, ledger: Ledger, scope: str) -> None:
    """Note in the ledger what its ε does not cover of a generator in a folder, as the card there says.

    Raises:
        UserError: It learnt without privacy from what nobody declared public, or its card tells of other weights.
    """
    if settings.generator_folder is None:
        return
    for origin in (origins := origins_of(Path(expand_path(settings.generator)))):
        if origin["private"] is None and origin["is_public"] is False:
            raise UserError(
                f"evolution.generator comes from {origin['path']}, which was trained without privacy on data that "
                "nobody declared public: no ε would cover what it writes; name another model"
            )
    from doppel.privacy.session import notes_on_origins  # needs torch, which no --help waits for

    for text, voids in notes_on_origins(ledger, scope, origins):
        ledger.caveat(scope, text, voids)


def warn_of(texts: Sequence[str], public: Sequence[str]) -> None:
    """Say so if first texts of a generator read unlike what people wrote, before a vote is paid for.

    Of people's texts one in twenty costs the shipped base more nats a word than the other 19; of 16 texts of one kind
    with them, four or more do in .7 % of all cases. Measured with SmolLM2-135M: 5 of 16 texts that it wrote from
    nothing, 1 of 16 behind examples.

    Formal guarantees:
        Nothing private is read: the texts are the generator's, and the others public.
    """
    if len(texts) < _FEW_TEXTS or len(public) < _FEW_TEXTS:
        return
    from commands.lightning.trained_model import place_of
    from doppel.metrics.fluency import LanguageModel

    judge = LanguageModel(place_of(BASE))

    def costs(of: Sequence[str]) -> list[float]:
        return [nats / max(1, len(text.split())) for nats, text in zip(judge.nats(of), of, strict=True)]

    bound = sorted(costs(public))[int(0.95 * len(public))]
    odd = [text for text, cost in zip(texts, costs(texts), strict=True) if cost > bound]
    if 4 * len(odd) >= len(texts):
        quotes = ", ".join(json.dumps(text[:80], ensure_ascii=False) for text in odd[:3])
        print(
            f"   warning: {len(odd)} of the first {len(texts)} texts of the generator read unlike what people wrote in "
            f"the reference, such as {quotes}: votes choose among such texts; stop here (Ctrl-C), and mend "
            "evolution.wording, evolution.examples or the generator, unless that is wanted",
            flush=True,
        )


def generator_of(settings: Evolution, answers: Answers, donations: Sequence[Donation]) -> Generator:
    """Build the generator.

    Raises:
        UserError: A model cannot be loaded.
    """
    if settings.generator == GRAMMAR:
        from doppel.evolution.generators.grammar import GrammarGenerator

        return GrammarGenerator()
    sampling = settings.temperature, settings.top_p, settings.max_new_tokens
    words = EXAMPLES if donations and settings.words is CONTINUATION else settings.words
    if settings.is_server:
        from doppel.evolution.generators.server import ServerModel

        account = settings.limits, settings.key_variable
        model: Model = ServerModel(settings.generator, settings.model, *sampling, *account)
    else:
        from doppel.evolution.generators.hugging_face import FolderModel

        model = FolderModel(expand_path(settings.generator), *sampling, settings.batch_size)
    return AskedModel(model, words, answers, donations, settings.num_examples)


def read_rows(path: str | None) -> list[dict[str, str]]:
    """Read rows of attributes, as ``metadata`` writes them; none where no file is named.

    Raises:
        DataError: The file has none.
    """
    if path is None:
        return []
    rows = [row for _, row in read_records(expand_path(path))]
    if not rows or any(cell is None for row in rows for cell in row.values()):
        raise DataError("it has no rows, or an empty cell: give what metadata has written", about=path)
    return [{name: as_word(cell) for name, cell in row.items()} for row in rows]


def read_public(path: str | None, data: Mapping[str, Any]) -> list[Donation]:
    """Read the first distinct texts of the public reference.

    Raises:
        DataError: The file cannot be read.
    """
    if path is None:
        return []
    columns = ReferenceColumns.from_config(data)
    found = islice(iter_examples(expand_path(path), "utterance", with_trees=False, columns=columns), _PUBLIC)
    turns = {turn.utterance: turn for turn in found}
    return [Donation(text, {"label": turn.label} if turn.label else {}) for text, turn in turns.items()]


def read_donations(path: str | None, data: Mapping[str, Any]) -> list[Donation]:
    """Read the texts that may be shown to a generator: rows of a table, each with a text.

    Formal guarantees:
        They are read by the columns by which :func:`_refuse_private` compares the file with the private one: what is
        shown is what was compared.

    Raises:
        DataError: It cannot be read, or has a row without text.
    """
    if path is None:
        return []
    columns, records = ReferenceColumns.from_config(data).in_file(read_records(expand_path(path)))
    found = []
    for row in rows_of(records, columns, None, path):
        text = row.cells.get(row.layout.text)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"no {row.layout.text!r}: give each donated text with its attributes", about=row.where)
        found.append(Donation(text, {name: as_word(value) for name, value in row.cells.items() if value is not None}))
    return found


def _identity(settings: Evolution) -> str:
    """All that an answer depends on but its question."""
    names = ("generator", "model", "temperature", "top_p", "max_new_tokens")
    return json.dumps([getattr(settings, name) for name in names])
