"""Names of functions as people write them: of a mangled C++ name its scope and name, without types; pure.

Source: Itanium C++ ABI, section 5.1 (names).
"""

from __future__ import annotations

import re

__all__ = ["readable_name"]

MANGLED = "_Z"
MAX_PARTS = 16
NUMBER = re.compile(r"\d{1,4}")
# Qualifiers of a member function come before its scope: const, volatile, restrict, & and &&.
QUALIFIERS = "KVrRO"
ANONYMOUS = "_GLOBAL__N_"


def readable_name(name: str) -> str:
    """Return a function's name for people; one that is not understood stays as it is.

    >>> readable_name("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE")
    'std::condition_variable::wait'
    >>> readable_name("pthread_cond_wait@@GLIBC_2.3.2")
    'pthread_cond_wait'
    """
    name = name.partition("@")[0]
    if not name.startswith(MANGLED):
        return name
    at = len(MANGLED)
    if name.startswith("L", at):
        at += 1  # of one file alone
    is_nested = name.startswith("N", at)
    if is_nested:
        at += 1
        while at < len(name) and name[at] in QUALIFIERS:
            at += 1
    parts: list[str] = []
    if name.startswith("St", at):
        parts.append("std")
        at += 2
    while len(parts) < MAX_PARTS:
        found = NUMBER.match(name, at + name.startswith("L", at))
        if found is None:
            break
        size, at = int(found.group()), found.end()
        part = name[at : at + size]
        if not size or len(part) < size:
            break
        parts.append("(anonymous)" if part.startswith(ANONYMOUS) else part)
        at += size
        if not is_nested:
            break
    if is_nested and parts and name[at : at + 2] in ("C1", "C2", "C3"):
        parts.append(parts[-1])
    elif is_nested and parts and name[at : at + 2] in ("D0", "D1", "D2"):
        parts.append(f"~{parts[-1]}")
    is_known = bool(parts) and parts != ["std"]
    return "::".join(parts) if is_known else name
