"""Lets the C library keep the memory of tensors that are freed, in place of fetching new pages for the next ones."""

from __future__ import annotations

import ctypes
import sys

# Of glibc's malloc.h; what is larger than the last is mapped for itself, and no larger value is taken.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_ALL, _PAD = 2**31 - 1, 2**26
LARGEST_KEPT = 2**25


def keep_freed_memory() -> bool:
    """Take tensors of up to 32 MiB from memory that this process has, for the rest of its life.

    glibc gives back what lies at the end of its heap after every step, and the kernel fills the pages of the next one
    with zeros at first use: several GB a step, and up to a fifth of its time on a CPU. The process keeps what its
    largest step took. Larger tensors are still mapped and given back one by one.

    Returns:
        Whether the C library is one that can do so: glibc.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    return all([mallopt(_MMAP_THRESHOLD, LARGEST_KEPT), mallopt(_TRIM_THRESHOLD, _ALL), mallopt(_TOP_PAD, _PAD)])
