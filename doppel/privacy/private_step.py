"""The mechanism in one file: clip each unit, sum over micro-batches and ranks, add noise, divide by the public B."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from doppel.errors import PrivateTrainingError
from doppel.gradients import GradientReducer
from doppel.privacy.banded_noise import BandedNoise
from doppel.privacy.bands import coefficients
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.plan import DPPlan
from doppel.privacy.secret import Secret

#: Where the state of PyTorch's CPU generator holds the 624 words, of 32 bits each, of its Mersenne twister.
_TWISTER = slice(24, 24 + 624 * 8)


@torch.no_grad()
def noisy_mean(
    parameters: Iterable[nn.Parameter],
    noise: GaussianNoise,
    batch_size: int,
    step: int,
    reducer: GradientReducer | None = None,
) -> None:
    """Make each ``.grad``, this rank's sum of clipped gradients, what a step may release: the noisy mean.

    Formal guarantees:
        Adding or removing one unit moves the sum over all ranks by at most C in ℓ₂ norm (see ``PerSampleClipper``;
        ranks hold disjoint parts of one sample). The result is that sum plus N(0, (σC)²) on every coordinate, divided
        by B: the Gaussian mechanism with noise multiplier σ, and post-processing, since B is public. *Once*: each rank
        sums one shard over all ranks, and only then adds the noise of the shard's own coordinates; shards are disjoint
        and cover all (``GradientReducer``), so a coordinate gets noise once whatever the number of ranks, and no rank's
        own part of the sum gets any. The optimiser reads those buffers alone. A parameter without a gradient counts as
        zero and gets its noise too.

    Args:
        parameters: The trained parameters, in the same order on every rank.
        noise: σ and C, and a secret that the ranks share; or noise of such a scale that steps correlate.
        batch_size: B of the plan: the expected number of units in a step, never the number sampled.
        step: Number of the optimiser step, counted over the whole run; none is taken twice.
        reducer: Holds the gradients and sums over ranks; None, where there is one rank, makes one for this step.

    Raises:
        PrivateTrainingError: The step is not a new one, a parameter is of half precision, in which sums are rounded,
            the reducer does not hold a trained parameter, or several ranks have no reducer.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    refuse_rounded_weights((f"one of shape {list(p.shape)}", p) for p in trained)
    if reducer is None:
        reducer = GradientReducer(trained)
        if reducer.num_ranks > 1:
            raise PrivateTrainingError(
                f"the noise of {reducer.num_ranks} ranks belongs to the sum over all of them: give noisy_mean the "
                "GradientReducer that sums"
            )
    if missing := reducer.missing(trained):
        raise PrivateTrainingError(
            f"the gradient reducer does not hold {len(missing)} trained parameters, the first of shape "
            f"{list(missing[0].shape)}, so they would get no noise: make it of all parameters that are trained"
        )

    noise.begin(step)

    def finish(shard: Tensor, place: int) -> None:
        with record_function("doppel/noise"):
            noise.add_(shard, place, step)
            shard.div_(batch_size)

    with record_function("doppel/reduce"):
        reducer.sum(finish)


def refuse_rounded_weights(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse trained parameters, by name, in which the sum of clipped gradients would be rounded, or has no norm.

    A gradient is of its parameter's dtype. In bfloat16 a sum over a thousand units has two or three digits: one unit
    more moves it by several C.

    Raises:
        PrivateTrainingError: One is neither float32 nor float64.
    """
    for name, parameter in parameters:
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            kind = str(parameter.dtype).removeprefix("torch.")
            raise PrivateTrainingError(
                f"a trained parameter ({name}) is {kind}, so that the sum of clipped gradients would be rounded to it, "
                "and one unit could move it by more than C: load the model with dtype=torch.float32, or call .float() "
                "on what is trained; precision: bf16-mixed computes in bfloat16 all the same"
            )


def closed_name(name: str, is_public: bool, is_asked: bool) -> str | None:
    """Return what a metric is logged as: its name if it is public, ``private/…`` if that is asked for, else None."""
    if is_public:
        return name
    return f"private/{name.replace('/', '_')}" if is_asked else None


class UnitRows(Protocol):
    """What a private step asks of a micro-batch: rows of whole units, one unit after the other.

    Attributes:
        num_units: Units in the micro-batch.
        rows_per_unit: Rows of each.
    """

    num_units: int
    rows_per_unit: int


class PrivateStep:
    """What a private run changes about an optimiser step; the counterpart of
    :class:`~lightning_modules.training.step_policy.PlainStep`.

    Formal guarantees:
        *Clipping.* :meth:`micro_batch` adds Σ clip(gᵤ, C) to the gradients.
        *Noise and division.* :meth:`finish` is :func:`noisy_mean` with the plan's B, and refuses a batch that
        announces another. It takes each step number once, so no noise is used twice. With bands, an object is a segment
        of :class:`.banded_noise.BandedNoise`, whose batches are those of one sampler with as many ``bands``.
        *Dropout.* A row's mask depends on its place in the batch: under a seed that the reader knows, one unit more
        would change the masks of the others, and the sum by more than C. So the whole state of PyTorch's generator (on
        a GPU, its 64 bits) is drawn from a secret, anew for each step and rank: given the same masks for the units that
        they share, neighbouring data sets differ by one clipped gradient: a mixture of such Gaussians.
        *Nothing else* reaches the gradients: a second pass of a micro-batch within a step, and a backward pass outside
        of :meth:`micro_batch`, which nothing would clip, are refused.
        *Metrics* of private batches stay in the process unless they are asked for, under names that say so.

    Args:
        model: Its trainable parameters are trained.
        spec: σ, C and B.
        broadcast: Gives every rank rank 0's uint8 tensor, so that all draw one stream of noise; None for one rank.
        loss_scale: Public constant by which the loss is multiplied before the backward pass.
        log_private_diagnostics: Whether metrics of private batches may be logged as ``private/…``.
        seed: For tests alone.
        num_steps: After which the training ends, counted over the whole run; None: those of the plan's first stage.
            :class:`.banded_noise.BandedNoise` takes none beyond.

    Attributes:
        finished: The last step whose gradients are noised; None before the first.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: DPPlan,
        broadcast: Callable[[Tensor], Tensor] | None = None,
        loss_scale: float = 1.0,
        log_private_diagnostics: bool = False,
        seed: int | None = None,
        num_steps: int | None = None,
    ) -> None:
        self.spec = spec
        self.loss_scale = loss_scale
        self.log_private_diagnostics = log_private_diagnostics
        self.clipper = PerSampleClipper(model, max_grad_norm=spec.max_grad_norm)
        self.finished: int | None = None
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        scale = spec.noise_multiplier, spec.max_grad_norm
        self._noise = GaussianNoise(*scale, seed)
        if spec.bands > 1:
            self._noise = BandedNoise(*scale, coefficients(spec.bands), num_steps or spec.stage_steps[0], seed)
        if broadcast is not None:
            self._noise.share_secret(broadcast)
        self._dropout = Secret(seed)
        self._passed: dict[int, UnitRows] | None = None  # micro-batches of this step, by id; None between two steps
        self._hooks = [p.register_post_accumulate_grad_hook(self._refuse_unclipped) for p in self._parameters]

    def _refuse_unclipped(self, parameter: Tensor) -> None:
        if self._passed is not None:
            raise PrivateTrainingError(
                "a backward pass outside of step_policy.micro_batch adds a gradient that nothing clips: let forward "
                "and backward pass be within it, once for each micro-batch, with all losses added up"
            )

    @contextmanager
    def micro_batch(self, batch: UnitRows, reducer: GradientReducer | None) -> Iterator[None]:
        """Clip what one forward and backward pass within this block give.

        Args:
            batch: The rows of the pass.
            reducer: Told of each finished gradient; given with the last micro-batch of a step.

        Raises:
            PrivateTrainingError: The micro-batch had its pass in this step: its units would be added twice.
        """
        if self._passed is not None:
            if id(batch) in self._passed:
                raise PrivateTrainingError(
                    "a micro-batch has a second pass in one step, which would add its units twice: add up its losses, "
                    "and take one forward and one backward pass for each micro-batch"
                )
            self._passed[id(batch)] = batch
        with self.clipper.capture(batch.num_units, rows_per_unit=batch.rows_per_unit):
            yield
        with record_function("doppel/clip"):
            self.clipper.accumulate(
                self.loss_scale, None if reducer is None else partial(reducer.ready, by_shards=True)
            )

    def seed_dropout(self, step: int, rank: int) -> None:
        """Set the whole state of PyTorch's generators to secret bits: a seed of the CPU's would keep 32 of them.

        The step begins with it: until :meth:`finish` weights do not change, so the clipper casts each once.
        """
        self.clipper.begin_step()
        self._passed = {}
        stream = self._dropout.stream("dropout", step, rank)
        torch.manual_seed(stream.getrandbits(64))
        state = torch.get_rng_state()
        words = state[_TWISTER].view(torch.int64)
        words.copy_(torch.from_numpy(stream.words(len(words))).bitwise_and_(2**32 - 1))
        torch.set_rng_state(state)

    def metric_name(self, name: str, is_public: bool) -> str | None:
        """Return the name to log a metric under; None keeps it in the process."""
        return closed_name(name, is_public, self.log_private_diagnostics)

    def finish(self, reducer: GradientReducer, expected_num_units: float, step: int) -> None:
        """Replace the summed gradients by the noisy mean.

        Args:
            reducer: Holds the gradients.
            expected_num_units: What the data module takes for B.
            step: Number of the optimiser step.

        Raises:
            PrivateTrainingError: The data module and the plan have another B, or the step is not a new one.
        """
        if expected_num_units != self.spec.expected_batch_size:
            raise PrivateTrainingError(
                f"the data module expects {expected_num_units:g} units in a step, but the plan divides by "
                f"{self.spec.expected_batch_size}: expected_num_units must be the data module's batch_size, whatever "
                "was sampled"
            )
        self.clipper.end_step()
        self._passed = None
        if self.finished is not None and step <= self.finished:
            raise PrivateTrainingError(f"step {step} has had its noise: take one optimiser step for a logical batch")
        noisy_mean(self._parameters, self._noise, self.spec.expected_batch_size, step, reducer)
        self.finished = step

    def close(self) -> None:
        """Free the clipper's buffers, and let the parameters be."""
        self.clipper.close()
        for hook in self._hooks:
            hook.remove()
