"""Formats by content: what a file is, whatever its name, and which tool reads what Rootwalk does not.

Reads the beginning of a file, decompressed; of a text that begins like no format, all of it up to a limit, as the lines
of a watchdog come at the end of a log. Decides nothing about whether the file is whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.importers.content import open_content
from rootwalk.instrumentation.errors import DecodeError

if TYPE_CHECKING:
    from rootwalk.graph.importers.formats import Importer

__all__ = ["Recognised", "name_other_format", "recognise"]

# Of the content, decompressed: a profile of 1,000 ranks lists its groups in some 100 KB before its events.
HEAD_BYTES: Final = 1024 * 1024
# Of a log that is searched for the watchdog's lines.
MAX_LOG_BYTES: Final = 4 * 1024 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
# Part of a chunk that is searched again with the next one: longer than what is searched for.
_OVERLAP_BYTES: Final = 128

WATCHDOG: Final = re.compile(
    rb"caught collective operation timeout|last enqueued (?:\w+ )?work: -?\d|"
    rb"detected by watchdog at work|Timeout at NCCL work: ",
    re.IGNORECASE,
)
_JSON: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_KINETO: Final = re.compile(
    rb'"traceEvents"\s*:|"(?:deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:|'
    rb'"ph"\s*:\s*"[A-Za-z]"'
)
_OTLP: Final = re.compile(rb'"resource_?(?:Spans|Metrics|Logs|Profiles)"\s*:', re.IGNORECASE)
_INSPECTOR: Final = re.compile(rb'"(?:coll_perf|p2p_perf|inspector_output_format_version)"\s*:')
_FLIGHT_JSON: Final = re.compile(rb'"(?:pg_config|pg_status|nccl_comm_state|profiling_name)"\s*:')
_FLIGHT_PICKLE: Final = re.compile(rb"pg_config|pg_status|profiling_name|nccl_version|comm_lib")
# First fields of a protobuf request: its resource in a message of its own, which has the fields 1 and 2.
_PROTOBUF_OTLP: Final = re.compile(
    rb"\x0a[\x00-\xff]{1,5}?\x0a[\x00-\xff]{1,5}?\x0a[\x00-\xff]", re.DOTALL
)

# Files that other tools read: by beginning or content, what they are and what to do instead.
_FOREIGN_HEADS: Final = (
    (
        re.compile(rb"SQLite format 3\x00.*CUPTI_ACTIVITY", re.DOTALL),
        "an Nsight Systems database",
        "Nsight Systems; for Rootwalk record a profile with torch.profiler",
    ),
    (
        re.compile(
            rb"SQLite format 3\x00.*(?:ingero|cuda_events|causal_chain)", re.DOTALL | re.IGNORECASE
        ),
        "an Ingero database",
        "`ingero explain`; for Rootwalk run the job under `rootwalk run`",
    ),
    (re.compile(rb"SQLite format 3\x00"), "an SQLite database", "the tool that wrote it"),
    (re.compile(rb"\x7fELF"), "a program or library", "nothing of it is a recording"),
    (re.compile(rb"PK\x03\x04.{26,90}?data\.pkl", re.DOTALL), "a PyTorch checkpoint", "torch.load"),
    (re.compile(rb"\x93NUMPY"), "a NumPy array", "numpy.load"),
    (
        re.compile(rb"\x80.{0,200}(?:device_traces|segments)", re.DOTALL),
        "a snapshot of CUDA memory",
        "pytorch.org/memory_viz",
    ),
    (
        re.compile(rb'\s*\{.*"schema"\s*:\s*"[\d.]+(?:-chakra[\d.]*)?".*"nodes"\s*:', re.DOTALL),
        "a PyTorch execution trace (Chakra)",
        "Chakra; for Rootwalk export with torch.profiler's export_chrome_trace",
    ),
    (
        re.compile(rb"Process \d+: .*\n(?:Python v|.*\n.*Thread )"),
        "stacks of py-spy",
        "a reader of stacks; for Rootwalk import flight recorder dumps",
    ),
)
_NCCL_LOG: Final = re.compile(rb"NCCL (?:INFO|WARN|TRACE) ")
_FOREIGN_SUFFIXES: Final = {
    ".nsys-rep": ("a report of Nsight Systems", "Nsight Systems"),
    ".qdrep": ("a report of Nsight Systems", "Nsight Systems"),
    ".ncu-rep": ("a report of Nsight Compute", "Nsight Compute"),
    ".rpd": (
        "a database of rocmProfileData",
        "rpd2tracing, whose JSON `rootwalk import kineto` reads",
    ),
    ".pftrace": ("a Perfetto trace", "ui.perfetto.dev"),
    ".perfetto-trace": ("a Perfetto trace", "ui.perfetto.dev"),
    ".timeline": ("a timeline of xpu_timer", "xpu_timer's tools or ui.perfetto.dev"),
    ".tfevents": ("events of TensorBoard", "TensorBoard"),
}


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a file is.

    Attributes:
        format: A key of `formats.FORMATS`, `store` for a store of Rootwalk; None if Rootwalk does not read it.
        what: In words, with its article.
        advice: Which tool reads it, or which format to name.
    """

    format: str | None
    what: str
    advice: str


_KNOWN: Final = {
    "store": Recognised("store", "a store of Rootwalk", "`rootwalk diagnose STORE`"),
    "oplog": Recognised("oplog", "a Parquet table of operations", "`rootwalk import oplog`"),
    "kineto": Recognised("kineto", "a PyTorch profile", "`rootwalk import kineto`"),
    "otlp": Recognised("otlp", "OTLP", "`rootwalk import otlp`"),
    "nccl-inspector": Recognised(
        "nccl-inspector", "a log of NCCL Inspector", "`rootwalk import nccl-inspector`"
    ),
    "flight-recorder": Recognised(
        "flight-recorder", "a Flight Recorder dump", "`rootwalk import flight-recorder`"
    ),
    "watchdog-log": Recognised(
        "watchdog-log",
        "a log with lines of PyTorch's NCCL watchdog",
        "`rootwalk import watchdog-log`",
    ),
}


def recognise(path: Path) -> Recognised | None:
    """Return what a file is; None where nothing is known of it, or it is empty.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        with open_content(path) as content:
            head = content.read(HEAD_BYTES)
            name = _format_of(head)
            if name is not None:
                return _KNOWN[name]
            foreign = _foreign(path, head)
            if foreign is not None:
                return foreign
            if _has_watchdog(head, content):
                return _KNOWN["watchdog-log"]
    except DecodeError:
        return None
    if _NCCL_LOG.search(head):
        advice = (
            "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 and import the"
            " dumps of the next hang"
        )
        return Recognised(None, "a log of NCCL without a timeout of PyTorch's watchdog", advice)
    return None


def name_other_format(path: Path, importer: Importer, error: DecodeError) -> DecodeError:
    """Return an error that says what the file is, where that is known and not what the importer reads."""
    try:
        found = recognise(path)
    except OSError:
        return error
    module = getattr(importer, "__module__", None) or getattr(importer, "__name__", "")
    if found is None or (found.format is None and not found.what):
        return error
    own = str(module).rpartition(".")[2].replace("_", "-")
    if found.format == own:
        return error
    return DecodeError(f"{error}; this is {found.what}", hint=f"use {found.advice}")


def _format_of(head: bytes) -> str | None:
    if head[8:12] == b"DUCK":
        return "store"
    if head.startswith(b"PAR1"):
        return "oplog"
    if head.startswith(b"\x80") and _FLIGHT_PICKLE.search(head):
        return "flight-recorder"
    # Lines of other programs may come before the first record.
    if _INSPECTOR.search(head):
        return "nccl-inspector"
    if _JSON.match(head):
        for name, pattern in (
            ("otlp", _OTLP),
            ("kineto", _KINETO),  # lists its groups under the same name as a dump
            ("flight-recorder", _FLIGHT_JSON),
        ):
            if pattern.search(head):
                return name
    if _is_protobuf_otlp(head):
        return "otlp"
    return None


def _is_protobuf_otlp(head: bytes) -> bool:
    """Return whether it begins as a request in protobuf does, or as one behind its length."""
    if _PROTOBUF_OTLP.match(head):
        return True
    # The Collector's length prefix: four bytes, big endian.
    return head[:1] == b"\x00" and bool(_PROTOBUF_OTLP.match(head[4:]))


def _foreign(path: Path, head: bytes) -> Recognised | None:
    for pattern, what, advice in _FOREIGN_HEADS:
        if pattern.match(head):
            return Recognised(None, what, advice)
    for suffix, (what, advice) in _FOREIGN_SUFFIXES.items():
        if suffix in path.name:
            return Recognised(None, what, advice)
    return None


def _has_watchdog(head: bytes, content: object) -> bool:
    read = content.read  # type: ignore[attr-defined]
    if b"\x00" in head[:4096]:
        return False
    chunk, seen = head, len(head)
    while chunk:
        if WATCHDOG.search(chunk):
            return True
        if seen >= MAX_LOG_BYTES:
            return False
        new = read(_CHUNK_BYTES)
        seen += len(new)
        chunk = chunk[-_OVERLAP_BYTES:] + new if new else b""
    return False
