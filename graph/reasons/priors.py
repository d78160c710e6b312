"""How likely each reason is before anything is measured: a setting of the shipped file, or a file of the user's own.

Owns the file's form and its checks. What a prior is added to is the score's; without a choice every reason has what
`default` says, and verdicts are those of a version without this choice.

Source:
    Method C7: score(h) = log prior(setting) + the log-likelihood ratios.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.reasons.contract import CONTRACT
from rootwalk.instrumentation.errors import ConfigError

__all__ = [
    "DEFAULT_SETTING",
    "PRIORS_VARIABLE",
    "Priors",
    "choose_priors",
    "default_priors",
    "read_settings",
]

DEFAULT_SETTING: Final = "default"
# What the option --priors says, for commands without it.
PRIORS_VARIABLE: Final = "ROOTWALK_PRIORS"
# No prior may weigh more than one piece of evidence can.
MAX_LOG_PRIOR: Final = 3.0
_KEYS: Final = frozenset({"text", "source", "rates", "log_prior"})
_SHIPPED: Final = "priors.toml"


@dataclass(frozen=True, slots=True)
class Priors:
    """The log priors of one setting.

    Attributes:
        name: Of the setting; of a file of the user's own `own`.
        log_by_code: Log prior by reason code; 0 for a code that is not there.
        text: What the setting is for.
        source: Where its numbers come from.
    """

    name: str
    log_by_code: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    source: str = ""

    def of(self, code: str) -> float:
        """Return the log prior of a reason."""
        return self.log_by_code.get(code, 0.0)

    def rules(self, version: str) -> str:
        """Return the version of the rules as a verdict shows it: with the setting where that is not the default.

        >>> Priors("shared_network").rules("2026-11-23")
        '2026-11-23+shared_network'
        """
        return version if self.name == DEFAULT_SETTING else f"{version}+{self.name}"


def choose_priors(asked: str | None) -> Priors:
    """Return the priors that are asked for; without a word, those of the environment; without that, the default's.

    Args:
        asked: Name of a setting, path of a TOML file, or None.

    Raises:
        ConfigError: If there is no such setting or file, or the file is not what it should be.
    """
    wanted = asked or os.environ.get(PRIORS_VARIABLE) or DEFAULT_SETTING
    settings = read_settings()
    if wanted in settings:
        return settings[wanted]
    path = Path(wanted)
    if path.suffix != ".toml" and len(path.parts) == 1 and not path.is_file():
        raise ConfigError(
            f'cannot choose priors: saw "{wanted}"; needs one of {", ".join(settings)}, or a TOML file',
            hint="a file of your own has a table [log_prior] with a number for a reason code",
        )
    return _read_own(path, settings[DEFAULT_SETTING])


def default_priors() -> Priors:
    """Return the priors of a diagnosis that was asked for no others."""
    return read_settings()[DEFAULT_SETTING]


@cache
def read_settings() -> Mapping[str, Priors]:
    """Return the shipped settings by name, the default first."""
    text = (resources.files(__package__) / _SHIPPED).read_text("utf-8")
    tables = tomllib.loads(text)
    base = _parse(_SHIPPED, DEFAULT_SETTING, tables.pop(DEFAULT_SETTING), {})
    others = {
        name: _parse(_SHIPPED, name, table, base.log_by_code) for name, table in tables.items()
    }
    return {DEFAULT_SETTING: base, **others}


def _read_own(path: Path, base: Priors) -> Priors:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f'cannot read priors from "{path}": saw {error.strerror}; needs a TOML file',
            hint="leave out --priors for the default",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f'cannot read priors from "{path}": saw no TOML ({error}); needs a table [log_prior]'
        ) from error
    return _parse(str(path), "own", table, base.log_by_code)


def _parse(place: str, name: str, table: Any, base: Mapping[str, float]) -> Priors:
    """Return what one table says, over what the default says.

    Raises:
        ConfigError: With the key that cannot be used.
    """

    def refuse(saw: str, needs: str) -> ConfigError:
        return ConfigError(f'cannot read priors from "{place}": saw {saw}; needs {needs}')

    if not isinstance(table, dict) or not isinstance(table.get("log_prior"), dict):
        raise refuse("no table [log_prior]", "one, with a number for a reason code")
    for key, value in table.items():
        if key not in _KEYS:
            raise refuse(f'a key "{key}"', f"only {', '.join(sorted(_KEYS))}")
        if key in ("text", "source") and not isinstance(value, str):
            raise refuse(f'"{key}" that is no text', "a text")
    for code, value in table["log_prior"].items():
        if code not in CONTRACT:
            raise refuse(f'"{code}"', "a reason code, such as NET_CONGESTION")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(f"{code} = {value!r}", "a number")
        # Not a number compares with nothing, and is refused as well.
        if not abs(value) <= MAX_LOG_PRIOR:
            raise refuse(f"{code} = {value}", f"a number from {-MAX_LOG_PRIOR} to {MAX_LOG_PRIOR}")
    own = {code: float(value) for code, value in table["log_prior"].items()}
    return Priors(name, {**base, **own}, table.get("text", ""), table.get("source", ""))
