"""Layers whose weights have products as gradients: Gram matrices side by side, and one sum for each weight."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import (
    UNIT,
    Norms,
    bmm_into,
    centre_operands,
    cross_inner,
    dot_rounding,
    gradient_of,
    in_units,
    lengths,
    unit_of,
    wide_dtype,
)

#: Bytes of a tensor that holds a part, on a CPU (see :mod:`doppel.allocator`) and on a GPU.
BUDGET_CPU, BUDGET = 28 * 2**20, 2**27


def part_size(bytes_of_one: int, num: int, is_cuda: bool) -> int:
    """Return how many of ``num`` layers lie side by side."""
    return max(1, min(num, (BUDGET if is_cuda else BUDGET_CPU) // max(bytes_of_one, 1)))


#: Adds to a weight's gradient: (gradient, flat G, flat A times the clip factors, scale).
AddProduct = Callable[[Tensor, Tensor, Tensor, float], None]


@dataclass(eq=False)
class LayerInput:
    """An input A that one layer after another reads: it has one Gram matrix, and one copy times the clip factors.

    Attributes:
        A: [U, n, d], once the first of them has its output gradient; or the ids [U, n] of an embedding, whose A is
            one-hot.
        flat_A: The same, [U·n, d]. Of an embedding, this is G, and its readers have the ids in its place: rows of G are
            added at them.
        readers: Weights whose gradient is GᵀA, how it is added, G [U, n, p], and the same as [U·n, p].
        place: Of the Gram matrix: which part, and where in it.
    """

    A: Tensor | None = None
    flat_A: Tensor | None = None
    readers: list[tuple[nn.Parameter, AddProduct, Tensor, Tensor]] = field(default_factory=list)
    place: tuple[int, int] | None = None


class Grams:
    """Gram matrices of layers with n positions a unit, [L, U, n, n], in parts of a budget.

    ‖GᵀA‖² = ⟨AAᵀ, GGᵀ⟩. An input that several layers read has one. A full part becomes squared norms at once, and its
    memory is that of the next.

    Formal guarantees:
        *The squared norm* has terms that may cancel, so rounding is bounded in the worst case, for sums in any order.
        With αₛ = ‖aₛ‖ and γₛ = ‖gₛ‖, entries of AAᵀ are off by u·k·(αₛαₜ + |aₛ·aₜ|) at most, those of GGᵀ by
        u·k'·(γₛγₜ + |gₛ·gₜ|) (:func:`.arithmetic.dot_rounding`); their products, summed in float64, by u of each.
        ⟨X + E, Y + F⟩ − ⟨X, Y⟩ = ⟨E, Y + F⟩ + ⟨X + E, F⟩ − ⟨E, F⟩, where X + E and Y + F are what was computed.
        So all is off by u·Σ (k·αₛαₜ|gₛ·gₜ| + k'·γₛγₜ|aₛ·aₜ| + (k + k' + 1)·|aₛ·aₜ||gₛ·gₜ|) + 4u²kk'·R²
        with R = Σ αₛγₛ. That the *other* factor's entries stand in it makes it small: gradients of different positions
        are nearly orthogonal, where αₛαₜγₛγₜ would be n times the norm.

        *The clipped gradient* c·GᵀA is summed over the unit's n positions, from A that is multiplied by c. Entries are
        off by (n + 2)·u·c·Σ|g||a|, together by (n + 2)·u·c·R. Where c·aₛ is rounded to half precision it becomes
        c·aₛ + δₛ with ‖δₛ‖ ≤ v·c·αₛ and v that precision's unit, so that ‖Gᵀδ‖² = Σ (gₛ·gₜ)(δₛ·δₜ) is at most
        v²c²·Σ αₛαₜ|gₛ·gₜ|. These are lengths, which are added to the norm and not to its square. In float16 2⁻¹²R² is
        added to the square, so that no operand leaves its range (:func:`.arithmetic.centre_operands`).

        *Of an embedding* aₛ is one-hot. AAᵀ tells which ids are equal, exactly: k = 0. The clipped gradient is a
        sum of rows of G times c in the wide dtype, at most n for an entry, so (n + 2)·u·c·R holds for it, too.

        n counts the positions that reach anything: adding an exact zero rounds nothing. It must not count padding, for
        then a unit's factor would depend on the longest unit beside it.

    Args:
        n: Positions of a unit.
        num: How many layers there may be.
        num_units: Units U.
        like: An operand.
        constant: ``torch.tensor``, cached: a copy to a GPU would wait, and cannot be part of a CUDA graph.
    """

    def __init__(self, n: int, num: int, num_units: int, like: Tensor, constant: Callable[..., Tensor]) -> None:
        wide = wide_dtype(like.dtype)
        bytes_of_one = 2 * num_units * n * n * wide.itemsize
        self._shape = (part_size(bytes_of_one, num, like.is_cuda), num_units, n, n)
        self._wide, self._operand, self._constant = wide, like.dtype, constant
        self._buffer: Tensor | None = None  # [2, L, U, n, n], of A and of G
        self._places: tuple[Tensor, ...] = ()
        self._index: list[int] = []
        self._serial = self._num_inputs = 0
        self._weights: list[tuple[tuple[float], ...]] = []  # of the terms of each layer
        self._squares: list[Tensor] = []
        self._terms: list[Tensor] = []
        self._reaches: list[Tensor] = []

    def add(self, shared: LayerInput, G: Tensor) -> None:
        """Form the Gram matrices of a layer, [U, n, d] and [U, n, p]."""
        A = shared.A
        assert A is not None
        if self._buffer is None:
            self._buffer = torch.empty((2, *self._shape), dtype=self._wide, device=A.device)
            self._places = self._buffer.flatten(0, 1).unbind(0)
        if len(self._index) == self._shape[0]:
            self._end_part()
        if shared.place is None or shared.place[0] != self._serial:
            shared.place = self._serial, self._num_inputs
            self._num_inputs += 1
            self._form(A, self._places[shared.place[1]])
        self._form(G, self._places[self._shape[0] + len(self._index)])
        self._index.append(shared.place[1])
        num_inputs = A.shape[2] if A.dim() == 3 else 0
        self._weights.append(_weights_of(num_inputs, G.shape[2], unit_of(self._wide)))

    def _form(self, x: Tensor, out: Tensor) -> None:
        if x.dim() == 2:
            torch.eq(x.unsqueeze(2), x.unsqueeze(1), out=out)
        else:
            bmm_into(x, x.mT, out)

    def _end_part(self) -> None:
        assert self._buffer is not None
        both, num = self._buffer, len(self._index)
        if not self._num_inputs == num == self._shape[0]:
            index = (*self._index, *range(self._shape[0], self._shape[0] + num))
            both = both.flatten(0, 1).index_select(0, self._constant(index, device=both.device)).unflatten(0, (2, num))
        length = lengths(both)
        products, reach, of_other = both.prod(0), length.prod(0), length.flip(0)
        self._squares.append(products.sum((0, 2, 3), dtype=torch.float64))
        sizes = products.abs_().sum((2, 3))  # several times faster on a CPU than a norm
        weighted = both.abs_().mul_(of_other.unsqueeze(3)).sum(4).mul_(of_other).sum(3)
        total = reach.sum(2)
        self._terms.append(torch.stack([*weighted.unbind(0), sizes, total.square()]))
        self._reaches.append(total.mul_(torch.count_nonzero(reach, dim=2).add_(2)))
        self._serial, self._num_inputs, self._index = self._serial + 1, 0, []

    def norms(self) -> Norms:
        """Return what is known of the units' norms, all layers together."""
        if self._index:
            self._end_part()
        self._buffer, self._places = None, ()
        terms, reaches = (x[0] if len(x) == 1 else torch.cat(x, -2) for x in (self._terms, self._reaches))
        weights = self._constant(tuple(zip(*self._weights, strict=True)), device=terms.device)  # [terms, L, 1]
        room = (terms * weights).sum((0, 1), dtype=torch.float64)
        longer = in_units(reaches.square_().sum(0, dtype=torch.float64), self._wide)
        if self._operand is not self._wide:
            longer += terms[1].sum(0, dtype=torch.float64) * (unit_of(self._operand) / UNIT) ** 2
        if self._operand is torch.float16:
            room += terms[3].sum(0, dtype=torch.float64) * (2.0**-12 / UNIT)
        return sum(self._squares[1:], self._squares[0]), room, longer


@functools.cache
def _weights_of(num_inputs: int, num_outputs: int, unit: float) -> tuple[tuple[float], ...]:
    """What the terms of a layer count in :class:`Grams`, in units of :data:`.arithmetic.Norms`."""
    of_A, of_G = dot_rounding(num_inputs), dot_rounding(num_outputs)
    return tuple((x * unit / UNIT,) for x in (of_G, of_A, of_A + of_G + 2, 4 * of_A * of_G * unit))


def add_products(
    inputs: list[LayerInput],
    factors: Tensor,
    scale: float,
    bound: float,
    erased: Tensor | None,
    added: Callable[[nn.Parameter], None],
) -> None:
    """Add ``scale · Σᵢ factorsᵢ GᵢᵀAᵢ`` to weights' gradients: one GEMM over units and positions for each weight.

    Scaled inputs are rounded once where they are of half precision.

    Args:
        inputs: In the order of the backward pass: the first is beside the gradient of the logits. It is emptied, and
            memory freed on the way.
        factors: Clip factors [U], zero where a unit is erased.
        scale: Takes the loss scale out.
        bound: The clipping norm, rounded up to a power of two (1 if it is infinite): float16 holds what is clipped in
            parts of it.
        erased: Units, marked true, that contribute exactly zero, even where they hold inf or nan: 0 · nan is nan. None:
            there are none.
        added: Called with each weight.
    """
    of_positions = {n: _of_positions(factors, erased, n) for n in {x.A.shape[1] for x in inputs if x.A is not None}}
    inputs.reverse()
    while inputs:
        first = inputs[-1].flat_A
        assert first is not None
        part = [inputs.pop() for _ in range(part_size(first.nbytes, len(inputs), first.is_cuda))]
        weights = [of_positions[x.A.shape[1]] for x in part]  # type: ignore[union-attr]
        scaled = list(torch._foreach_mul([x.flat_A for x in part], [own for own, _ in weights]))  # type: ignore[misc]
        for x, (_, is_erased) in zip(part, weights, strict=True):
            A, x.flat_A, own_scale = scaled.pop(0).to(x.flat_A.dtype), None, scale  # type: ignore[union-attr]
            A = A if is_erased is None else A.masked_fill_(is_erased, 0)
            while x.readers:
                weight, add, G, flat = x.readers.pop(0)
                if flat.is_floating_point() and is_erased is not None:
                    flat = flat.masked_fill(is_erased, 0)
                if flat.dtype is torch.float16:
                    clean = x.A if erased is None else x.A.masked_fill(erased[:, None, None], 0)  # type: ignore[union-attr]
                    A, flat, own_scale = centre_operands(clean, flat.view_as(G), factors, scale, bound)  # type: ignore[arg-type]
                del G
                add(gradient_of(weight), flat, A, own_scale)
                added(weight)


def cross_terms(inputs: list[LayerInput]) -> list[Norms]:
    """Return what a weight of two layers, an embedding and a linear one, adds to the squared norms of both."""
    uses: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for x in inputs:
        for weight, _, G, _ in x.readers:
            assert x.A is not None
            uses[id(weight)].append((x.A, G))
    found = []
    for both in uses.values():
        if len(both) == 2:
            (ids, D), (A, G) = sorted(both, key=lambda use: use[0].dim())
            G_at_ids = G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1))
            found += [cross_inner(G_at_ids, A.to(D.dtype), D)] * 2  # 2⟨·, ·⟩
    return found


def _of_positions(factors: Tensor, erased: Tensor | None, n: int) -> tuple[Tensor, Tensor | None]:
    """Factors, and which are erased, of each unit's n positions, [U·n, 1]."""
    both = [None if x is None else x.unsqueeze(1).expand(-1, n).reshape(-1, 1) for x in (factors, erased)]
    return both[0], both[1]  # type: ignore[return-value]
