"""The parser's network: source encoder, decoder of actions, and what they lose on the oracle's actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doppel.errors import UserError
from doppel.parsing.vocabulary import BOS, COPY, PAD, STRING_OPEN, ActionVocabulary
from lightning_modules.parsing.action_decoder import ActionDecoder, DecoderArguments, DecoderOutput, DecoderState
from lightning_modules.parsing.attention import EncoderLayer, RowDropout, sinusoids
from lightning_modules.parsing.encoders import make_encoder
from lightning_modules.parsing.source_encoder import NUM_SHAPES, EncoderArguments

_LOWEST = -1e9


@dataclass
class ParserLosses:
    """Summed losses of a batch in nats.

    Attributes:
        actions: Of the actions, label-smoothed.
        pointers: Of the positions that arcs point to.
        copies: Of the source pieces that are copied.
        num_actions: Actions that were predicted.
    """

    actions: Tensor
    pointers: Tensor
    copies: Tensor
    num_actions: int

    @property
    def total(self) -> Tensor:
        """Sum of the three."""
        return self.actions + self.pointers + self.copies


def _choice_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    """Summed loss of the choices [B, T] by their scores [B, T, choices]; -1 is no choice."""
    is_choice = chosen >= 0
    return F.cross_entropy(scores[is_choice], chosen[is_choice], reduction="sum")


class ParserNetwork(nn.Module):
    """p(actions, pointers, copies | utterance), position by position (Zhou et al., 2022).

    An input position is the embedding of its action; an arc's has the embedding of the node it points to added, a
    copy's the vector of the copied piece.

    Args:
        vocabulary: The actions.
        encoder: Where the source vectors come from.
        decoder: Sizes.
        load_weights: Whether to load the encoder's weights, or to leave all weights to a checkpoint.
    """

    def __init__(
        self,
        vocabulary: ActionVocabulary,
        encoder: EncoderArguments,
        decoder: DecoderArguments,
        load_weights: bool = True,
    ) -> None:
        super().__init__()
        if decoder.size % decoder.num_heads:
            raise UserError(f"decoder: num_heads must divide size; got {decoder}")
        size = decoder.size
        self.encoder = make_encoder(encoder, load_weights)
        self.source_map = nn.Sequential(nn.Linear(self.encoder.size, size), nn.LayerNorm(size))
        self.shape_embedding = nn.Embedding(NUM_SHAPES, size)
        self.source_layers = nn.ModuleList(
            EncoderLayer(size, decoder.num_heads, decoder.feedforward_size, decoder.dropout)
            for _ in range(encoder.num_layers)
        )
        self.source_norm = nn.LayerNorm(size)
        self.action_embedding = nn.Embedding(len(vocabulary), size)
        self.target_map = nn.Linear(size, size, bias=False)
        self.copied_map = nn.Linear(size, size, bias=False)
        self.input_norm = nn.LayerNorm(size)
        self.dropout = RowDropout(decoder.dropout)
        self.decoder = ActionDecoder(decoder)
        self.action_bias = nn.Parameter(torch.zeros(len(vocabulary)))
        nn.init.normal_(self.action_embedding.weight, std=size**-0.5)
        nn.init.normal_(self.shape_embedding.weight, std=0.02)
        can_be_target = torch.zeros(len(vocabulary), dtype=torch.bool)
        can_be_target[[BOS, STRING_OPEN]] = True
        can_be_target[vocabulary.first_node : vocabulary.first_right_arc] = True
        self.can_be_target: Tensor
        self.register_buffer("can_be_target", can_be_target, persistent=False)
        self._kept: dict[tuple[str, ...], Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.action_bias.device

    def start_from(self, other: ParserNetwork, numbers: Sequence[int]) -> None:
        """Take the weights of another network; those of actions that it has not stay as they are.

        Args:
            other: A network of the same sizes.
            numbers: Number of each action in its vocabulary, or -1, [V].

        Raises:
            UserError: It has other sizes.
        """
        own, theirs = self.state_dict(), other.state_dict()
        known = torch.tensor(numbers)
        for name in ("action_embedding.weight", "action_bias"):
            if own[name].shape[1:] == theirs[name].shape[1:]:
                theirs[name] = torch.where(
                    (known >= 0).view(-1, *[1] * (own[name].dim() - 1)), theirs[name][known.clamp(min=0)], own[name]
                )
        if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in theirs.items()}:
            raise UserError(
                "init_weights: that parser has another encoder or other sizes: "
                "set model.encoder and model.decoder as they were in its training"
            )
        self.load_state_dict(theirs)

    def encode(self, sources: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return vectors [B, 1 + S, D] of the whole and of each piece of utterances, and their mask [B, 1 + S]."""
        batch = self.encoder.collate(sources, self.device)
        keeps = self.encoder.is_frozen and self.training  # turns to annotate come once
        vectors = self.fixed_features(sources) if keeps else self.encoder(batch)
        memory_BSD = self.source_map(vectors) + self.shape_embedding(batch.shapes)
        if self.source_layers:
            memory_BSD = self.dropout(memory_BSD) + sinusoids(memory_BSD.shape[1], memory_BSD.shape[2], self.device)
        for layer in self.source_layers:
            memory_BSD = layer(memory_BSD, batch.piece_mask)
        return self.dropout(self.source_norm(memory_BSD)), batch.piece_mask

    def losses(
        self,
        sources: Sequence[Sequence[str]],
        ids: Tensor,
        pointers: Tensor,
        copies: Tensor,
        label_smoothing: float = 0.0,
    ) -> ParserLosses:
        """Return the losses of the oracle's actions, each given those before it.

        Args:
            sources: Pieces of each utterance.
            ids: Actions [B, T + 1], the first of which is given; padded on the right with PAD.
            pointers: Positions that arcs point to [B, T + 1], elsewhere -1.
            copies: Pieces that are copied [B, T + 1], elsewhere -1.
            label_smoothing: Probability spread evenly over all actions.
        """
        memory, memory_mask = self.encode(sources)
        targets = torch.where(pointers >= 0, ids.gather(1, pointers.clamp(min=0)), -1)[:, :-1]
        x_BTD = self._embed(ids[:, :-1], targets, copies[:, :-1], memory, 0)
        output = self.decoder(self.dropout(x_BTD), memory, memory_mask)
        ids_BT, pointers_BT, copies_BT = ids[:, 1:], pointers[:, 1:], copies[:, 1:]
        is_action = ids_BT != PAD
        logits = self.logits(output.hidden[is_action])
        actions = F.cross_entropy(logits.float(), ids_BT[is_action], reduction="sum", label_smoothing=label_smoothing)
        later = torch.ones(ids_BT.shape[1], ids_BT.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        closed = later | ~self.can_be_target[ids[:, :-1]].unsqueeze(1)
        pointing = _choice_loss(output.pointers.masked_fill(closed, _LOWEST), pointers_BT)
        copying = _choice_loss(output.copies.masked_fill(~memory_mask.unsqueeze(1), _LOWEST)[:, :, 1:], copies_BT)
        return ParserLosses(actions, pointing, copying, int(is_action.sum()))

    def start(self, sources: Sequence[Sequence[str]]) -> tuple[Tensor, DecoderState]:
        """Return source vectors, and the decoder's state before the first action."""
        memory, mask = self.encode(sources)
        return memory, self.decoder.start(memory, mask)

    def step(self, ids: Tensor, targets: Tensor, copies: Tensor, memory: Tensor, state: DecoderState) -> DecoderOutput:
        """Decode one action further.

        Args:
            ids: Last action of each row [B].
            targets: Action at the position that it points to [B], or -1.
            copies: Piece that it copied [B], or -1.
            memory: Source vectors [B, 1 + S, D].
            state: Decoder's state, which is extended.
        """
        x_BTD = self._embed(ids.unsqueeze(1), targets.unsqueeze(1), copies.unsqueeze(1), memory, state.length)
        return self.decoder.step(x_BTD.squeeze(1), state)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score all actions [..., V]."""
        return F.linear(hidden, self.action_embedding.weight, self.action_bias)

    def _embed(self, ids: Tensor, targets: Tensor, copies: Tensor, memory: Tensor, first: int) -> Tensor:
        """Input vectors [B, T, D] of actions, the first of which is at position ``first``."""
        size = memory.shape[2]
        x_BTD = self.action_embedding(ids)
        pointed = self.target_map(self.action_embedding(targets.clamp(min=0)))
        x_BTD = x_BTD + pointed * (targets >= 0).unsqueeze(2)
        pieces = (copies + 1).clamp(min=0).unsqueeze(2).expand(-1, -1, size)
        x_BTD = x_BTD + self.copied_map(memory.gather(1, pieces)) * (ids == COPY).unsqueeze(2)
        x_BTD = self.input_norm(x_BTD)
        return x_BTD + 0.5 * sinusoids(ids.shape[1], size, ids.device, first)

    def fixed_features(self, sources: Sequence[Sequence[str]]) -> Tensor:
        """Return features of the frozen encoder [B, 1 + S, D], each computed once and kept in half precision."""
        keys = [tuple(pieces) for pieces in sources]
        missing = list(dict.fromkeys(key for key in keys if key not in self._kept))
        if missing:
            batch = self.encoder.collate(missing, self.device)
            for key, vectors in zip(missing, self.encoder(batch), strict=True):
                self._kept[key] = vectors[: 1 + len(key)].half().cpu()
        rows = [self._kept[key] for key in keys]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device, torch.float32)
