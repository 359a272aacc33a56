"""Batched greedy parsing: the network proposes, the state machine says what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from doppel.parsing.machine import ParserMachine
from doppel.parsing.tables import tables_of
from doppel.parsing.vocabulary import BOS, COPY, ActionVocabulary
from lightning_modules.parsing.parser_network import ParserNetwork


@torch.inference_mode()
def greedy_parse(
    network: ParserNetwork, vocabulary: ActionVocabulary, sources: Sequence[Sequence[str]], max_actions: int
) -> tuple[list[ParserMachine], list[float]]:
    """Parse several utterances together.

    Of each row the likeliest allowed action is taken, then the likeliest allowed position or piece. The first
    action is a call, where the vocabulary has one: a word alone is no tree that `run` reads. Rows that end leave the
    batch. The machine ends every row in a well-formed graph, whatever the network says.

    Args:
        network: A trained network, in evaluation mode.
        vocabulary: Its actions.
        sources: Pieces of what users said; utterances of similar length for speed.
        max_actions: Actions after which a row is led to its end.

    Returns:
        The finished machine of each utterance, and the negative log-likelihood of its choices in nats an action.
    """
    machines = [ParserMachine(vocabulary, len(source), max_actions) for source in sources]
    calls = tables_of(vocabulary).calls
    memory, state = network.start(sources)
    running = list(machines)
    order, nats, num_actions = np.arange(len(machines)), np.zeros(len(machines)), np.zeros(len(machines))
    history = np.full((len(machines), 64), BOS)
    targets, copies = np.full(len(machines), -1), np.full(len(machines), -1)
    while running:
        inputs = [torch.from_numpy(a).to(network.device) for a in (history[:, state.length], targets, copies)]
        output = network.step(inputs[0], inputs[1], inputs[2], memory, state)
        scores = network.logits(output.hidden[:, 0]).float()
        logits, totals = scores.cpu().numpy(), scores.logsumexp(1).cpu().numpy()
        pointer_scores, copy_scores = output.pointers[:, 0].cpu().numpy(), output.copies[:, 0].cpu().numpy()
        allowed = np.stack([machine.allowed() for machine in running])
        if running[0].position == 1 and (allowed & calls).any():
            allowed &= calls
        ids = np.where(allowed, logits, -np.inf).argmax(1)
        nats[order] += totals - logits[np.arange(len(ids)), ids]
        num_actions[order] += 1
        targets, copies = np.full(len(running), -1), np.full(len(running), -1)
        for row, (machine, action) in enumerate(zip(running, ids.tolist(), strict=True)):
            if action == COPY:
                pieces = copy_scores[row, 1 : 1 + machine.num_source_pieces]
                nats[order[row]] += _surprise(pieces)
                copies[row] = pieces.argmax()
                machine.apply(action, copy=int(copies[row]))
            elif vocabulary.is_arc(action):
                positions = machine.allowed_pointers(action)
                nats[order[row]] += _surprise(pointer_scores[row, positions])
                pointer = positions[int(pointer_scores[row, positions].argmax())]
                targets[row] = history[row, pointer]
                machine.apply(action, pointer=pointer)
            else:
                machine.apply(action)
        if state.length == history.shape[1]:
            history = np.concatenate([history, np.full_like(history, BOS)], axis=1)
        history[:, state.length] = ids
        going = np.array([not machine.done for machine in running])
        if not going.all():
            running = [machine for machine in running if not machine.done]
            history, targets, copies, order = history[going], targets[going], copies[going], order[going]
            rows = torch.from_numpy(going.nonzero()[0]).to(network.device)
            memory = memory[rows]
            state.select(rows)
    return machines, (nats / num_actions.clip(min=1)).tolist()


def _surprise(scores: NDArray[np.float32]) -> float:
    """-log p of the best of some scores, in nats."""
    return float(np.log(np.exp(scores - scores.max()).sum()))
