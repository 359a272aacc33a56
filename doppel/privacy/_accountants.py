"""The accounting libraries behind `doppel.privacy.accounting`, each imported only when asked."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from doppel.privacy.mechanism import CalibrationError, Mechanism

if TYPE_CHECKING:
    import numpy as np
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from numpy.typing import NDArray

_GUIDE_ORDERS = (1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, *range(3, 9), *range(10, 26, 3), 32, 48, 64, 128, 512)


def guide_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """A cheap Rényi bound (dp-accounting, few orders), to bracket and to choose grids by."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    with _quiet():
        spent = sum(
            mechanism.steps * _step_divergences(mechanism.noise_multiplier, mechanism.sample_rate)
            for mechanism in mechanisms
        )
        epsilon = float(rdp.compute_epsilon(_GUIDE_ORDERS, spent, delta)[0])
    return math.inf if math.isnan(epsilon) else epsilon


@functools.lru_cache(maxsize=64)  # stages of one budget share σ and q, and each is accounted alone and with the others
def _step_divergences(noise_multiplier: float, sample_rate: float) -> NDArray[np.float64]:
    """Rényi divergences of one step, at the guide's orders; those of k steps are k times as large."""
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_GUIDE_ORDERS)
    accountant.compose(Mechanism(sample_rate, noise_multiplier, 1).event)
    return accountant.rdp


def pld_epsilon(mechanisms: Sequence[Mechanism], delta: float, guide: float, coarsen: float = 1.0) -> float:
    """Pessimistic privacy-loss distributions, both directions of add/remove (Doroshenko et al. 2022).

    dp-accounting's `PLDAccountant` composes the same distributions on one grid for all; it builds each of them
    anew, which costs twice what composing them does, and it ends some 1e-10 away from here.
    """
    interval = coarsen * _grid(mechanisms, guide)
    composed: PrivacyLossDistribution | None = None
    with _quiet():
        for mechanism in mechanisms:
            plain = mechanism.sample_rate >= 1.0  # k plain Gaussians are one Gaussian with sigma / sqrt(k)
            scale = mechanism.noise_multiplier / (math.sqrt(mechanism.steps) if plain else 1.0)
            part = _gaussian_pld(scale, mechanism.sample_rate, interval)
            part = part if plain else part.self_compose(mechanism.steps)
            composed = part if composed is None else composed.compose(part)
        assert composed is not None
        return float(composed.get_epsilon_for_delta(delta))


def _grid(mechanisms: Sequence[Mechanism], guide: float) -> float:
    """Discretisation interval: 1e-4 times a power of two.

    Rounding T steps to a grid of interval h costs about T h^2 in epsilon (measured); h keeps that near 1e-4
    of epsilon, within [1e-4, 4e-4]. Above epsilon 50, where losses range wide, it doubles with epsilon.
    """
    steps = sum(1 if mechanism.sample_rate >= 1.0 else mechanism.steps for mechanism in mechanisms)
    harmless = math.sqrt(1e-4 * guide / steps) / 1e-4
    doublings = min(2, math.floor(math.log2(max(1.0, harmless))))
    return 1e-4 * 2.0 ** (doublings + math.floor(math.log2(max(1.0, guide / 50.0))))


@functools.lru_cache(maxsize=4)  # building one costs twice what composing it does
def _gaussian_pld(scale: float, sample_rate: float, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=scale,
        sampling_prob=sample_rate,
        value_discretization_interval=interval,
        pessimistic_estimate=True,
    )


def optimistic_epsilon(mechanisms: Sequence[Mechanism], delta: float, guide: float) -> float:
    """A lower bound on epsilon: the same distributions, rounded down where `pld_epsilon` rounds up."""
    from dp_accounting.pld import privacy_loss_distribution

    composed: PrivacyLossDistribution | None = None
    with _quiet():
        for mechanism in mechanisms:
            part = privacy_loss_distribution.from_gaussian_mechanism(
                standard_deviation=mechanism.noise_multiplier,
                sampling_prob=mechanism.sample_rate,
                value_discretization_interval=_grid(mechanisms, guide),
                pessimistic_estimate=False,
                use_connect_dots=False,  # which can round up alone
            ).self_compose(mechanism.steps)
            composed = part if composed is None else composed.compose(part)
        assert composed is not None
        return float(composed.get_epsilon_for_delta(delta))


def rdp_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """Rényi DP at Opacus's default orders, converted by Canonne, Kamath and Steinke (2020), Prop. 12."""
    accountant = _opacus("rdp").RDPAccountant()
    accountant.history = [(m.noise_multiplier, m.sample_rate, m.steps) for m in mechanisms]
    with _quiet():
        epsilon = float(accountant.get_epsilon(delta))
    return math.inf if math.isnan(epsilon) else max(0.0, epsilon)


def prv_epsilon(mechanisms: Sequence[Mechanism], delta: float, guide: float) -> float:
    """Upper end of the interval of Gopi, Lee and Wutschitz (2021), at most 1e-2 above the estimate."""
    accountant = _opacus("prv").PRVAccountant()
    accountant.history = [(m.noise_multiplier, m.sample_rate, m.steps) for m in mechanisms]
    with _quiet():
        return float(accountant.get_epsilon(delta, eps_error=min(1e-2, max(1e-3, 1e-2 * guide))))


def has_opacus() -> bool:
    """Whether the accountants of Opacus are there, `prv` and `rdp`."""
    return find_spec("opacus") is not None


@functools.cache
def _opacus(name: str) -> Any:
    """A module of `opacus.accountants`, loaded beside Opacus: ``import opacus`` imports PyTorch and its distributed
    optimizers, two seconds that numbers do not need. The folder is opened as a package of its own, in which the one
    class that knows of optimizers, the accountants' abstract base, is a plain one.

    Raises:
        CalibrationError: Opacus is not installed.
    """
    spec = find_spec("opacus")
    if spec is None or spec.origin is None:
        raise CalibrationError(
            f"the {name} accountant is Opacus's, which is not installed: pip install 'doppel[opacus]', or take pld."
        )
    package, base = ModuleType("_opacus_accountants"), ModuleType("_opacus_accountants.accountant")
    package.__path__ = [os.path.join(os.path.dirname(spec.origin), "accountants")]
    base.IAccountant = _History  # type: ignore[attr-defined]
    for module in (package, base):
        sys.modules.setdefault(module.__name__, module)
    try:
        analysis: Any = import_module("_opacus_accountants.analysis.rdp")
        if not hasattr(analysis._compute_rdp, "cache_info"):  # prv asks for each divergence of one step twice or more
            analysis._compute_rdp = functools.lru_cache(maxsize=4096)(analysis._compute_rdp)
        return import_module(f"_opacus_accountants.{name}")
    except (ImportError, AttributeError):  # a release that is made otherwise
        return import_module(f"opacus.accountants.{name}")


class _History:
    """What an accountant of Opacus keeps: noise multiplier, sample rate and number of steps, in their order."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' numerical chatter (orders left out, overflow of hopeless candidates)."""
    import numpy as np

    chatter = sys.modules.get("absl.logging")  # dp-accounting's
    verbosity = chatter.get_verbosity() if chatter else None
    if chatter:
        chatter.set_verbosity(chatter.ERROR)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        if chatter:
            chatter.set_verbosity(verbosity)
