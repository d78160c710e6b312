"""The command line: the composition root, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import keyword
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from rootwalk.instrumentation.errors import RootwalkError

__all__ = ["COMMANDS", "build_parser", "main"]

# Verbs in the order in which a new user meets them. Each is a module of `rootwalk.graph.commands`, with `_` after a
# keyword.
COMMANDS: Final = (
    "demo",
    "run",
    "diagnose",
    "report",
    "serve",
    "check",
    "explain",
    "sql",
    "import",
    "export",
    "agent",
    "level",
    "receive",
)

EXAMPLES: Final = """examples:
  rootwalk demo
  rootwalk run -- torchrun --nproc-per-node=4 train.py
  rootwalk diagnose rootwalk-j1.duckdb --json
"""


def is_host_package(package: str) -> bool:
    """Return whether a missing package is one that `rootwalk[all]` brings: a training image has the base install.

    A verb imports Rootwalk's own modules, Python's, and those of that extra, so it is what is neither of the first.
    """
    return bool(package) and package != "rootwalk" and package not in sys.stdlib_module_names


class _Version(argparse.Action):
    """Prints the version. It is looked up only when asked for: that costs as much as all else before a verb runs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata

        try:
            version = metadata.version("rootwalk")
        except metadata.PackageNotFoundError:
            version = "0 (source tree)"
        print(f"{parser.prog} {version}")
        parser.exit()


def build_parser(verbs: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of some verbs. Importing a verb's module costs milliseconds: heavy imports are in its `run`."""
    parser = argparse.ArgumentParser(
        prog="rootwalk",
        description="Tells why a distributed training job is slow: which rank, why, how many seconds.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--verbose", action="store_true", help="say more on stderr")
    shared.add_argument("--quiet", action="store_true", help="no progress on stderr")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in verbs:
        suffix = "_" if keyword.iskeyword(name) else ""
        module = importlib.import_module(f"rootwalk.graph.commands.{name}{suffix}")
        verb = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[shared],
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def _configure_logging(arguments: argparse.Namespace) -> None:
    level = logging.INFO
    if arguments.verbose:
        level = logging.DEBUG
    elif arguments.quiet:
        level = logging.ERROR
    logging.basicConfig(level=level, format="rootwalk: %(message)s", stream=sys.stderr)
    if not arguments.verbose:
        # Libraries speak when something is wrong; what we tell the user we say ourselves.
        for noisy in ("urllib3", "opentelemetry", "aiohttp", "grpc", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.ERROR)


def _refuse_verb(word: str) -> int:
    """Say that there is no such verb, and which one may have been meant; return the exit code."""
    print(f'rootwalk: cannot run "{word}": no such command; needs one of', file=sys.stderr)
    print(f"  {', '.join(COMMANDS)}", file=sys.stderr)
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    if near:
        print(f"hint: did you mean rootwalk {near[0]}?", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code (0 done, 1 failed, 2 usage error; more in each verb's help)."""
    words = sys.argv[1:] if argv is None else argv
    # Where the first word names a verb, no other verb's help can be asked for.
    parser = build_parser([name for name in COMMANDS if name in words[:1]] or COMMANDS)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        return _refuse_verb(words[0])
    arguments = parser.parse_args(words)
    _configure_logging(arguments)
    try:
        code: int = arguments.run(arguments)
    except RootwalkError as error:
        print(f"rootwalk {arguments.command}: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not is_host_package(package):
            raise
        print(
            f"rootwalk {arguments.command}: cannot run: no {package} in {sys.prefix};",
            end=" ",
            file=sys.stderr,
        )
        print("needs the packages of the host side", file=sys.stderr)
        print("hint: pip install 'rootwalk[all]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (as `head` does): nothing to say and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
