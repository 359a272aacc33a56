"""How much each word of a text tells which of two sets it is from, by a public sentence encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from doppel.errors import DataError
from doppel.redaction.mask import MASK

Floats = NDArray[np.float64]

_HIDDEN, _EPOCHS, _BATCH, _TEMPERATURE, _RATE = 128, 3, 64, 0.1, 1e-3


class WordStates:
    """A sentence encoder that tells of each word of a text; each text is read by itself.

    Args:
        model: The encoder, an ``AutoModel`` whose embeddings can be given (``inputs_embeds``), on any device. What it
            tells is on the CPU, but for the embeddings.
        tokenizer: Its fast tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model.eval().requires_grad_(False), tokenizer
        self.size: int = model.config.hidden_size
        self._limit = min(tokenizer.model_max_length, model.config.max_position_embeddings)

    def embedded(self, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Input embeddings of the tokens of a text, [1, T, D], and the word of each, [T]; −1 for special tokens.

        Words behind the encoder's longest text have no token.
        """
        read = self._tokenizer(
            list(words), is_split_into_words=True, truncation=True, max_length=self._limit, return_tensors="pt"
        )
        of_word = torch.tensor([-1 if word is None else word for word in read.word_ids(0)])
        embedded: Tensor = self._model.get_input_embeddings()(read["input_ids"].to(self._model.device))
        return embedded, of_word

    def states(self, embedded_1TD: Tensor) -> Tensor:
        """The last layer's states, [T, D]."""
        states: Tensor = self._model(inputs_embeds=embedded_1TD).last_hidden_state[0].cpu()
        return states

    @torch.no_grad()
    def of_words(self, words: Sequence[str]) -> Tensor:
        """The mean state of each word's tokens, [num_words, D]; zero for a word without any."""
        embedded, of_word = self.embedded(words)
        is_word = of_word >= 0
        states, places = self.states(embedded)[is_word], of_word[is_word]
        sums = torch.zeros(len(words), self.size).index_add_(0, places, states)
        return sums / torch.bincount(places, minlength=len(words)).clamp_min(1)[:, None]


class EncoderClassifier:
    """A logistic regression on the mean of a text's word states.

    Args:
        encoder: Of the words.
        sensitive: Texts; likewise ``safe``. Both sets weigh alike.

    Raises:
        DataError: A set is empty.
    """

    def __init__(self, encoder: WordStates, sensitive: Sequence[str], safe: Sequence[str]) -> None:
        from sklearn.linear_model import LogisticRegression

        if not sensitive or not safe:
            raise DataError(
                f"the ranker learns from {len(sensitive)} sensitive and {len(safe)} safe texts: give some of both"
            )
        self.encoder = encoder
        texts = [text.split() or [MASK] for text in (*sensitive, *safe)]
        self.states = [encoder.of_words(words) for words in tqdm(texts, "ranker reads", unit="text", disable=None)]
        labels = np.repeat([1, 0], [len(sensitive), len(safe)])
        means = torch.stack([states.mean(0) for states in self.states]).numpy()
        model = LogisticRegression(class_weight="balanced", max_iter=1000).fit(means, labels)
        self.weight, self.bias = torch.tensor(model.coef_[0], dtype=torch.float32), float(model.intercept_[0])

    def log_odds(self, mean_D: Tensor) -> Tensor:
        """Log odds that a text with this mean state is sensitive."""
        return mean_D @ self.weight + self.bias


class GradientRanker:
    """|gradient · input| of each word: the log odds' derivative along the embeddings of its tokens.

    Args:
        classifier: Of both sets.
    """

    def __init__(self, classifier: EncoderClassifier) -> None:
        self._classifier = classifier

    def scores(self, words: Sequence[str]) -> Floats:
        """See :class:`~doppel.redaction.mask.Ranker`."""
        encoder = self._classifier.encoder
        embedded, of_word = encoder.embedded(words)
        embedded.requires_grad_(True)
        is_word = of_word >= 0
        log_odds = self._classifier.log_odds(encoder.states(embedded)[is_word].mean(0))
        (gradient,) = torch.autograd.grad(log_odds, embedded)
        along = (gradient * embedded.detach())[0].sum(1).cpu()[is_word]
        return torch.zeros(len(words)).index_add_(0, of_word[is_word], along).abs().double().numpy()


class LearnedRanker:
    """A network of four linear layers that learns which words to hide so that the classifier cannot tell the sets.

    It reads the state of each word, and its sigmoid is the word's score. In training the top K are hidden softly, by a
    sigmoid of the distance to the K-th score over a temperature; the loss is the KL divergence between even odds and
    what the classifier says of the mean of what is left. It trains for 3 epochs of batches of 64 texts.

    Args:
        classifier: Of both sets; its texts are those that it learns from.
        level: Share of a text's words that are hidden, in (0, 1).
        seed: Of its weights and of the order of texts.
    """

    def __init__(self, classifier: EncoderClassifier, level: float, seed: int) -> None:
        self._encoder = classifier.encoder
        draw = torch.Generator().manual_seed(seed)
        sizes = (self._encoder.size, _HIDDEN, _HIDDEN, _HIDDEN, 1)
        layers: list[nn.Module] = []
        for wide, narrow in zip(sizes, sizes[1:], strict=False):
            linear = nn.Linear(wide, narrow)
            for parameter in linear.parameters():
                nn.init.uniform_(parameter, -(wide**-0.5), wide**-0.5, generator=draw)
            layers += [linear, nn.Tanh()]
        self._network = nn.Sequential(*layers[:-1], nn.Sigmoid())
        optimizer = torch.optim.Adam(self._network.parameters(), lr=_RATE)
        texts = [states for states in classifier.states if len(states) > 1]
        for _ in range(_EPOCHS):
            order = torch.randperm(len(texts), generator=draw).tolist()
            for start in tqdm(range(0, len(order), _BATCH), "ranker learns", unit="batch", leave=False, disable=None):
                losses = [self._loss(classifier, texts[place], level) for place in order[start : start + _BATCH]]
                optimizer.zero_grad()
                torch.stack(losses).mean().backward()
                optimizer.step()
        self._network.requires_grad_(False)

    def _loss(self, classifier: EncoderClassifier, states_ND: Tensor, level: float) -> Tensor:
        scores = self._network(states_ND).squeeze(1)
        num = min(max(round(level * len(scores)), 1), len(scores) - 1)
        around = scores.detach().sort(descending=True).values[num - 1 : num + 1].mean()
        kept = 1 - torch.sigmoid((scores - around) / _TEMPERATURE)
        log_odds = classifier.log_odds((kept[:, None] * states_ND).sum(0) / kept.sum())
        return -0.5 * (F.logsigmoid(log_odds) + F.logsigmoid(-log_odds)) - float(np.log(2))  # KL(even ‖ told)

    def scores(self, words: Sequence[str]) -> Floats:
        """See :class:`~doppel.redaction.mask.Ranker`."""
        found: Tensor = self._network(self._encoder.of_words(words)).squeeze(1)
        return found.double().numpy()
