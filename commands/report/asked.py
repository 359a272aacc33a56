"""What people ask for: the functions, or the labels, of synthetic utterances, and how often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from commands.report.names import Names
from commands.report.released import Release, sampling_interval
from commands.report.supported import Supported
from commands.run_folder.systems import system
from datamodules.reading.attribute_codes import BETWEEN
from doppel.lispress import valid_function_types
from doppel.text.topics import UNLIKE
from doppel.text.words import stem_of, words_of

#: Samples that a function must have, where no shares were released: fewer tell little, and show no three examples.
FEWEST = 5
_EXAMPLES = 3
_TYPICAL_WORDS = 8
#: What a word more or less costs an example, in shares of samples; and the words that say what it is about.
_LENGTH_COUNTS, _WORDS_THAT_SAY = 0.03, 2
#: Of Lispress itself, which nobody asks for.
_NOTATION = {"do", "let", "lambda"}


@dataclass(frozen=True)
class Sample:
    """A synthetic utterance.

    Attributes:
        utterance: Its text.
        tree: Its parse tree, which need not be well-formed; None without one.
        label: What it was written for, such as an intent or a topic; None without one.
        read_tree: The tree that a semantic parser reads in it; None where none did.
        confidence: Of that parser in what it reads, in (0, 1]; None where it did not say.
        system: Who wrote it.
        fits: Whether a public encoder reads it as what it was written for; True where none was asked.
    """

    utterance: str
    tree: str | None = None
    label: str | None = None
    read_tree: str | None = None
    confidence: float | None = None
    system: str = ""
    fits: bool = True

    @cached_property
    def names(self) -> frozenset[str]:
        """The functions that it calls, or its label, or each of its attributes."""
        if self.label is not None:
            has_attributes = system(self.system).has_attributes
            return frozenset(self.label.split(BETWEEN) if has_attributes else [self.label])
        heads = valid_function_types(self.tree, "call_heads") if self.tree else None
        return frozenset(heads or ()) - _NOTATION


@dataclass(frozen=True)
class Share:
    """How many requests, as a share of all, and where that lies with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One function or label that people ask for.

    Attributes:
        name: As the data have it.
        words: What people call it; the name again where nobody says.
        share: Of the requests that use it.
        num_samples: Samples that use it.
        is_supported: None where nobody says what is.
        read_back: Share of these samples in which a semantic parser reads it too; None where none read them.
        confidence: Mean confidence of this parser in what it reads in them; None where it did not say.
        examples: Synthetic utterances.
        about: Of a theme or a topic, words that set it apart.
        topics: Of a theme, its topics that are no noise, by share.
    """

    name: str
    words: str
    share: Share
    num_samples: int
    is_supported: bool | None
    read_back: float | None
    confidence: float | None
    examples: tuple[str, ...]
    about: tuple[str, ...] = ()
    topics: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What people ask for.

    Attributes:
        rows: Those that are no noise: what is not supported first, then by share.
        plumbing: What programs are built with and nobody asks for, by share.
        unlike: Requests that are of no theme of the public texts, if they are no noise; ``unexpected`` ones among them.
        unexpected: Topics that nobody expected, where nobody says what is supported, by share.
        too_rare: Names of the others.
        share_of_too_rare: Of the samples, those that use one of the others.
        unserved: Of the requests, those that use one of the unsupported ``rows``; None where nobody says what is.
        unserved_too_rare: Of the samples, those that use no such row, but one of the others that is not supported.
        release: Where the shares come from; None: they are frequencies among the samples.
        num_samples: Samples that have a tree or a label.
        has_labels: Whether rows are labels, not functions.
    """

    rows: tuple[Row, ...]
    plumbing: tuple[Row, ...]
    unlike: Row | None
    unexpected: tuple[Row, ...]
    too_rare: tuple[str, ...]
    share_of_too_rare: float
    unserved: float | None
    unserved_too_rare: float
    release: Release | None
    num_samples: int
    has_labels: bool

    @property
    def has_themes(self) -> bool:
        """Whether rows are themes, called by sentences."""
        return self.release is not None and bool(self.release.themes)

    @property
    def by_attribute(self) -> dict[str, list[Row]]:
        """The rows of each attribute, whose values are shares of one whole."""
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            found[row.name.partition(": ")[0]].append(row)
        return found

    @property
    def lacking(self) -> list[Row]:
        """What is not supported."""
        return [row for row in self.rows if row.is_supported is False]

    @property
    def telling(self) -> Row | None:
        """The most frequent one in at most two thirds of the requests: a wrapper of them all tells none apart."""
        return next((row for row in self.rows if row.share.value <= 2 / 3), None)

    @property
    def served(self) -> list[Row]:
        """All else."""
        return [row for row in self.rows if row.is_supported is not False]


def is_asked_for(name: str, names: Names, supported: Supported | None) -> bool:
    """Check whether a name is more than plumbing or no topic; what is said not to be supported, by its name, is."""
    is_named = supported is not None and name in supported.without
    return name != UNLIKE and (is_named or not names.is_plumbing(name))


def lacks(sample: Sample, names: Names, supported: Supported | None) -> list[str]:
    """Return what a sample asks for that is not supported."""
    if supported is None:
        return []
    return sorted(n for n in sample.names if is_asked_for(n, names, supported) and not supported.holds(n))


def ask(
    samples: Sequence[Sample],
    supported: Supported | None,
    release: Release | None,
    names: Names,
    topics: Asked | None = None,
) -> Asked | None:
    """Count what the samples ask for; None where none has a tree or a label.

    Args:
        samples: Samples.
        supported: What the assistant supports, if that is known.
        release: Shares that were measured, if any were.
        names: What people call it.
        topics: Where the samples have themes as labels, what is asked for by topics.
    """
    samples = [sample for sample in samples if sample.names]
    if not samples:
        return None
    uses: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        for name in sample.names:
            uses[name].append(sample)
    if release is not None and samples[0].label is not None:
        for name in release.shares:
            uses.setdefault(name, [])
    everywhere = word_shares(samples)
    rows: list[Row] = []
    plumbing: list[Row] = []
    unlike: Row | None = None
    unexpected: list[Row] = []
    expected_by_nobody = set() if release is None or supported is not None else set(release.unexpected)
    too_rare: list[str] = []
    for name, own in uses.items():
        if release is not None and name == UNLIKE:
            is_shown = (together := release.unlike()).is_above_noise(name)
            unlike = _row(name, own, len(samples), everywhere, supported, together, names) if is_shown else None
            continue
        if release is not None:
            is_shown = name in release.shares and release.is_above_noise(name)
        else:
            is_shown = len(own) >= FEWEST
        if not is_shown:
            too_rare.append(name)
        else:
            row = _row(name, own, len(samples), everywhere, supported, release, names)
            if topics is not None and release is not None:
                inner = [own for own in topics.rows if release.themes.get(own.name) == name and own.name != name]
                row = replace(row, topics=tuple(inner))
            if name == UNLIKE:
                unlike = row
            elif name in expected_by_nobody:
                unexpected.append(row)
            else:
                (rows if is_asked_for(name, names, supported) else plumbing).append(row)
    too_rare = sorted(name for name in too_rare if is_asked_for(name, names, supported))
    rare = set(too_rare)
    lacking = {row.name: row for row in rows if row.is_supported is False}
    lacked = [own for sample in samples if (own := lacks(sample, names, supported))]
    num_shown = sum(not lacking.keys().isdisjoint(own) for own in lacked)
    return Asked(
        rows=tuple(sorted(rows, key=lambda row: (row.is_supported is not False, -row.share.value, row.words))),
        plumbing=tuple(sorted(plumbing, key=lambda row: (-row.share.value, row.name))),
        unlike=unlike,
        unexpected=tuple(sorted(unexpected, key=lambda row: (-row.share.value, row.name))),
        too_rare=tuple(too_rare),
        share_of_too_rare=sum(not rare.isdisjoint(sample.names) for sample in samples) / len(samples),
        unserved=None if supported is None else _sum(lacking.values(), num_shown),
        unserved_too_rare=(len(lacked) - num_shown) / len(samples),
        release=release,
        num_samples=len(samples),
        has_labels=samples[0].label is not None,
    )


def _sum(rows: Collection[Row], num_samples: int) -> float:
    """The share of requests that use any of the rows: the sum of their shares, a request of several counted once.

    How many requests are of several is known of the samples alone.

    Args:
        rows: Rows.
        num_samples: Samples that use any of them.
    """
    uses = sum(row.num_samples for row in rows)
    total = sum(max(0.0, row.share.value) for row in rows)
    return min(1.0, total * num_samples / uses if uses else total)


def _row(
    name: str,
    own: Sequence[Sample],
    num_samples: int,
    everywhere: Mapping[str, float],
    supported: Supported | None,
    release: Release | None,
    names: Names,
) -> Row:
    if release is None:
        share = Share(len(own) / num_samples, *sampling_interval(len(own), num_samples))
    else:
        share = Share(min(1.0, release.shares[name]), *release.interval(name))
    about = () if release is None else tuple(release.words.get(name, ()))
    read = [Sample("", tree=s.read_tree).names for s in own if s.read_tree is not None and s.label is None]
    sure = [s.confidence for s in own if s.confidence is not None and s.label is None]
    return Row(
        name=name,
        words=names.of(name),
        share=share,
        num_samples=len(own),
        is_supported=None if supported is None else supported.holds(name),
        read_back=sum(name in found for found in read) / len(read) if read else None,
        confidence=sum(sure) / len(sure) if sure else None,
        examples=examples(_saying([sample for sample in own if sample.fits], about), everywhere),
        about=about,
    )


def _saying(own: Sequence[Sample], words: Sequence[str]) -> Sequence[Sample]:
    """Samples that say one of the words which set their theme apart, in any form; all, where none does.

    A sample is kept under a theme because its nearest topic is one of it. So it need not ask for what the theme's
    sentence does; one that says such a word does so more often.
    """
    stems = {stem_of(word) for word in words}
    return [sample for sample in own if stems & {stem_of(word) for word in words_of(sample.utterance)}] or own


def examples(own: Sequence[Sample], everywhere: Mapping[str, float]) -> tuple[str, ...]:
    """Return three different utterances of a row that say it, of a common length and the simplest requests first.

    A tree's utterance need not say all that the tree does. It says a row by words that are more frequent in the row's
    utterances than in all, of which the two best count; a label before that by the words of its name.

    Args:
        own: Samples of the row.
        everywhere: Of each word, the share of all samples that have it.
    """
    by_text = {sample.utterance: sample for sample in reversed(own)}
    place = {sample.utterance: i for i, sample in reversed(list(enumerate(own)))}
    gains = {word: share - everywhere[word] for word, share in word_shares(own).items()}
    labels = [frozenset(words_of(sample.label)) for sample in own if sample.label is not None]
    named = frozenset.intersection(*labels) if labels else frozenset()  # of several attributes that of the row

    def key(text: str) -> tuple[int, float, int]:
        words = frozenset(words_of(text))
        said = sum(sorted((gains[word] for word in words), reverse=True)[:_WORDS_THAT_SAY])
        length = abs(len(text.split()) - _TYPICAL_WORDS) + len(by_text[text].names)
        return -len(named & words), _LENGTH_COUNTS * length - said, place[text]

    return tuple(sorted(by_text, key=key)[:_EXAMPLES])


def word_shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Return of each word the share of the samples that have it."""
    counts = Counter(word for sample in samples for word in {*words_of(sample.utterance)})
    return {word: count / len(samples) for word, count in counts.items()}
