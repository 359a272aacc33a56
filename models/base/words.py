"""Write the vocabulary of :mod:`doppel.text.unexpected`: English word forms, the rarest first, without function words.

    pip install wordfreq==3.1.1 && python -m models.base.words

wordfreq (Speer, 2022) counts the forms in subtitles, news, books, the web and Wikipedia. Its data, and so the file that
this writes, are under CC BY-SA 4.0. A file, because wordfreq takes 58 MB.
"""

from __future__ import annotations

import gzip

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from doppel.text.unexpected import ENGLISH
from doppel.text.words import FRAME, words_of

#: Forms of three occurrences in 10⁸ words or more (Zipf 1.5): esim, monzo and revolut are among them.
_LEAST_ZIPF = 1.5
#: So many of the most frequent forms say nothing of a theme.
_MOST_FREQUENT = 200


def main() -> None:
    """Write the file that the package ships."""
    from wordfreq import top_n_list, zipf_frequency

    forms = [word for word in top_n_list("en", 10**7) if words_of(word) == [word]]
    frame = {*ENGLISH_STOP_WORDS, *FRAME.split(), *forms[:_MOST_FREQUENT]}
    kept = [word for word in forms if word not in frame and zipf_frequency(word, "en") >= _LEAST_ZIPF]
    ENGLISH.write_bytes(gzip.compress("".join(f"{word}\n" for word in reversed(kept)).encode(), mtime=0))


if __name__ == "__main__":
    main()
