"""Shares that a run has released under differential privacy, with their noise."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import binomtest

from commands.privacy.coverage import EVOLVE, ledger_of
from commands.privacy.feature_extractors import CLUSTERS
from commands.run_folder.manifest import Entry, Manifest
from commands.run_folder.run_folder import RunFolder
from datamodules.reading.attribute_codes import AttributeCodes
from doppel.privacy.histogram import CONFIDENCE, Z, largest_noise
from doppel.privacy.ledger import MechanismRecord
from doppel.resampling import tree_vector
from doppel.tables.schema import Column, Schema
from doppel.text.topics import UNLIKE


@dataclass(frozen=True)
class Release:
    """A histogram that the ledger has paid for, as shares of the units.

    Attributes:
        shares: Of the units, by function or label; noise can make one negative.
        deviations: Standard deviation of each: of the noise, and of what shares of turns were made with.
        noise_multiplier: Noise over sensitivity.
        num_units: Units that were counted.
        unit: What one is.
        themes: Of each topic its theme; empty where labels are no topics.
        words: Of topics and themes, the words that set them apart.
        unexpected: Topics that nobody expected.
    """

    shares: Mapping[str, float]
    deviations: Mapping[str, float]
    noise_multiplier: float
    num_units: int
    unit: str
    themes: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unexpected: Sequence[str] = ()

    def of_themes(self) -> Release:
        """Return the shares of themes: those of their topics together, with the noise of them together."""
        return self._together({name: self.themes.get(name, name) for name in self.shares})

    def unlike(self) -> Release:
        """Return the share of what is unlike the public texts, topics that nobody expected among it."""
        return self._together({name: UNLIKE for name in (*self.unexpected, UNLIKE) if name in self.shares})

    def _together(self, of: Mapping[str, str]) -> Release:
        shares: dict[str, float] = defaultdict(float)
        variances: dict[str, float] = defaultdict(float)
        for name, group in of.items():
            shares[group] += self.shares[name]
            variances[group] += self.deviations[name] ** 2
        deviations = {group: math.sqrt(variance) for group, variance in variances.items()}
        return replace(self, shares=dict(shares), deviations=deviations)

    def interval(self, name: str) -> tuple[float, float]:
        """Return the 95 % confidence interval of a share."""
        share, noise = self.shares[name], Z * self.deviations[name]
        return min(1.0, max(0.0, share - noise)), min(1.0, max(0.0, share + noise))

    def is_above_noise(self, name: str) -> bool:
        """Check whether a share is more than noise: with 95 % confidence nothing that nobody asks for is above it."""
        return self.shares[name] > largest_noise(len(self.shares)) * self.deviations[name]


def read_release(record: RunFolder, of: str, trees: Sequence[str]) -> Release | None:
    """Read what was released for a system: the histogram of its labels, or of the functions that resampled it, or the
    columns of its table of attributes where samples have no trees.

    Formal guarantees:
        What is read was released with noise and is in the ledger; all else here is arithmetic on it, on the public N
        and sigma, and on samples: post-processing. A histogram without noise is not read.

    A resampling sums, over turns, each turn's functions as a vector of length 1 (`doppel.resampling.tree_vector`).
    A function's sum becomes a share of turns by the mean entry that it has in the ``trees`` which use it: that assumes
    synthetic trees with the function to be about as rich in other functions as private ones.

    Args:
        record: The run.
        of: The system.
        trees: Of its samples; none where they have labels.

    Returns:
        None where there is none.
    """
    ledger, samples = ledger_of(record), record.manifest.samples().get(of)
    from doppel.privacy.release import NoisyHistogram  # need torch, which no --help waits for
    from doppel.tables.releases import NoisyMarginals

    if samples is None or samples.budget is None or not ledger.exists():
        return None
    kinds = {own.kind for own in ledger.spent(samples.budget)}
    if NoisyMarginals.kind in kinds and (trees or (found := _of_columns(record.manifest, samples)) is not None):
        return None if trees else found
    if NoisyHistogram.kind not in kinds:
        return None
    told = _shares(record.manifest, samples)
    if told is None and samples.verb == EVOLVE:  # which keeps the sizes of labels in the ledger alone
        told = next((_sizes(own) for own in ledger.spent(samples.budget) if own.kind == NoisyHistogram.kind), None)
    if told is None or told.get("what") == CLUSTERS:
        return None
    if "bins" not in told or not trees:  # a label or a topic: an utterance has one, so that its vector is 1 there
        return _release(told, dict.fromkeys(told["sums"], (1.0, 0.0)))
    entries: dict[str, list[float]] = defaultdict(list)
    for tree in trees:
        for name, entry in tree_vector(tree, told["bins"]).items():
            entries[name].append(entry)
    return _release(told, {name: (fmean(own), _error(own)) for name, own in entries.items()})


def _of_columns(manifest: Manifest, samples: Entry) -> Release | None:
    """Shares of the values of each attribute, by all marginals with its column, each by what its noise lets it say."""
    from commands.privacy.marginals import measurements, read_releases

    steps = {entry.step for entry in manifest.upstream(samples.path)}
    for entry in manifest.find("metrics", verb="attributes"):
        if entry.step not in steps or manifest.changes(entry.path):
            continue
        terms, records = read_releases(manifest.path(entry))
        codes = AttributeCodes(Schema(tuple(Column(name, tuple(v)) for name, v in terms["columns"].items())))
        num_units, shares, deviations = terms["num_units"], dict[str, float](), dict[str, float]()
        for place, parts in enumerate(codes.parts):
            sums, precision = np.zeros(len(parts)), 0.0
            for own in measurements(records):
                if place in own.clique:
                    others = tuple(axis for axis, column in enumerate(own.clique) if column != place)
                    counts = own.counts.sum(axis=others)
                    weight = len(counts) / own.counts.size / own.sigma**2  # of so many noisy counts each is a sum
                    sums, precision = sums + weight * counts, precision + weight
            if precision:  # else a crash has lost the only one
                shares |= dict(zip(parts, (sums / precision / num_units).tolist(), strict=True))
                deviations |= dict.fromkeys(parts, 1 / math.sqrt(precision) / num_units)
        if shares:
            return Release(shares, deviations, max(deviations.values()) * num_units, num_units, terms["unit"])
    return None


def _shares(manifest: Manifest, samples: Entry) -> dict[str, Any] | None:
    """What a step released with noise, by which the samples were drawn or their prompts were; None where none did."""
    steps = {entry.step for entry in manifest.upstream(samples.path) if entry.verb in ("histogram", "resample")}
    for entry in manifest.find("metrics"):
        told = _read(manifest.path(entry)) if entry.step in steps and not manifest.changes(entry.path) else None
        if told is not None and told.get("sums"):
            return told
    return None


def _sizes(paid: MechanismRecord) -> dict[str, Any] | None:
    """The sizes of labels by which samples evolved, as a step writes what it released; None where that was lost."""
    for own in paid.releases:
        if own.content is not None:
            sums = dict(zip(own.content["labels"], own.content["sums"], strict=True))
            return {**own.content, "sums": sums, **{name: paid.fields[name] for name in ("num_units", "unit")}}
    return None


def _release(told: Mapping[str, Any], entries: Mapping[str, tuple[float, float]]) -> Release:
    """Shares from sums and what one request adds to each, with the standard error of that."""
    sigma, num_units = told["noise_multiplier"], told["num_units"]
    shares = {name: told["sums"][name] / num_units / entry for name, (entry, _) in entries.items()}
    noise = {name: sigma / num_units / entry for name, (entry, _) in entries.items()}
    deviations = {name: math.hypot(noise[name], shares[name] * error / e) for name, (e, error) in entries.items()}
    about = [told.get(key, default) for key, default in (("themes", {}), ("words", {}), ("unexpected", ()))]
    return Release(shares, deviations, sigma, num_units, told["unit"], *about)


def _error(values: Sequence[float]) -> float:
    """Standard error of a mean; as large as the mean where there is one value alone."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else values[0]


def _read(path: Path) -> dict[str, Any] | None:
    """A released histogram with noise; None where there is no such file."""
    told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return told if told.get("noise_multiplier") else None


def sampling_interval(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share of ``count`` in ``total`` samples (Wilson, 1927)."""
    if not total:
        return 0.0, 1.0
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)
