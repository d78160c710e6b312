"""Mutated OTLP requests over all routes, with good ones in between: what must never break a receiver."""

from __future__ import annotations

import http.client
import json
import math
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from rootwalk.otel_receiver.otlp_json import render_json_message
from rootwalk.otel_receiver.request_checks import parse_request
from rootwalk.otel_receiver.signals import Signal
from support.compressions import COMPRESSIONS
from support.http2_client import DATA, END_STREAM, Http2Client, frame, grpc_fields, message
from support.otlp_messages import (
    log_request,
    metric,
    metric_request,
    profile_request,
    span,
    trace_request,
)
from support.otlp_paths import GRPC_PATHS, HTTP_PATHS
from support.receiver_process import ReceiverProcess

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
CONTENT_TYPES = (PROTOBUF, "application/protobuf", JSON, f"{JSON}; charset=utf-8", "text/plain", "")
# Whatever is sent, one of these is the answer; 500 would be a fault of ours.
HTTP_STATUSES = {200, 400, 404, 405, 413, 415, 503}
GRPC_CODES = {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNIMPLEMENTED"}
# The same as numbers, and INTERNAL, which gRPC asks for where a message says it is compressed and not by what.
FRAME_CODES = {"0", "3", "8", "12", "13", "14"}
# Every so many requests one is good, and must be kept.
GOOD_INTERVAL = 50
GOOD_TRACE_ID = b"good" * 4
_PENDING_CALLS = 32


@dataclass
class FuzzReport:
    """What was sent and answered; `wrong` lists answers that must not be, and good requests that were not accepted."""

    mutated: int = 0
    good_span_ids: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, answer: str, wrong: str | None, good_span_id: str | None = None) -> None:
        """Count one request, from any thread; the span of a good one must be in the store."""
        with self._lock:
            self.answers[answer] += 1
            if wrong is not None:
                self.wrong.append(wrong)
            if good_span_id is None:
                self.mutated += 1
            else:
                self.good_span_ids.append(good_span_id)


class Mutator:
    """Makes requests that are nearly OTLP, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 -- to be repeated, not to be secret
        messages = {
            Signal.TRACES: trace_request(
                [span(n + 1, attributes={"a": n, "b": ["x", {"c": b"\0"}]}) for n in range(3)]
            ),
            Signal.METRICS: metric_request(
                [
                    metric("g", gauge={"data_points": [{"as_double": 1.5}, {"as_int": 2}]}),
                    metric("h", histogram={"data_points": [{"count": 2, "bucket_counts": [1, 1]}]}),
                    metric("q", summary={"data_points": [{"count": 1}]}),
                ]
            ),
            Signal.LOGS: log_request(["a line", "another"]),
            Signal.PROFILES: profile_request([[{"stack_index": 1, "values": [3]}]]),
        }
        self._protobuf = messages
        self._json = {
            signal: json.dumps(render_json_message(parse_request(signal, body))).encode()
            for signal, body in messages.items()
        }

    def signal(self) -> Signal:
        """Return any signal."""
        return self.random.choice(list(Signal))

    def body(self, *, is_json: bool) -> bytes:
        """Return a request of any signal with some mutations, one in ten with none."""
        body = (self._json if is_json else self._protobuf)[self.signal()]
        for _ in range(self.random.choice((0, 1, 1, 1, 1, 2, 2, 3, 5, 8))):
            body = self._mutated(body)
        return body

    def _mutated(self, body: bytes) -> bytes:
        start = self.random.randrange(len(body) + 1)
        end = min(len(body), start + self.random.choice((1, 1, 2, 4, 16, 64)))
        match self.random.randrange(7):
            case 0:
                return body[:start]
            case 1:
                return body[:start] + body[end:]
            case 2:
                return body[:end] + body[start:]
            case 3:
                return body[:start] + self.random.randbytes(end - start) + body[end:]
            case 4:
                return body[:start] + b"\xff" * (end - start) + body[end:]
            case 5:
                token = self.random.choice((b"null", b"-1", b"1e999", b'"', b"{}", b"[", b"9" * 30))
                return body[:start] + token + body[end:]
            case _:
                return body[:start] + self.body(is_json=False)[: self.random.randrange(200)]


def fuzz(receiver: ReceiverProcess, count: int, seed: int = 1) -> FuzzReport:
    """Send so many mutated requests and good ones in between; return what came of it.

    A third each goes by HTTP, by a gRPC library and frame by frame.
    """
    report = FuzzReport()
    with_good = math.ceil(count / 3 * GOOD_INTERVAL / (GOOD_INTERVAL - 1)) + 1
    senders = [
        threading.Thread(target=send, args=(receiver, with_good, Mutator(seed + n), report))
        for n, send in enumerate((_fuzz_http, _fuzz_grpc, _fuzz_frames))
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return report


def _good_request(number: int) -> tuple[str, bytes]:
    message = span(1, "good", trace_id=GOOD_TRACE_ID, span_id=number.to_bytes(8, "big"))
    return f"{number:016x}", trace_request([message])


def _fuzz_http(receiver: ReceiverProcess, count: int, mutator: Mutator, report: FuzzReport) -> None:
    host, _, port = receiver.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    choose = mutator.random.choice
    for number in range(count):
        if number % GOOD_INTERVAL == 0:
            span_id, body = _good_request(3 * number + 1)
            headers = {"Content-Type": PROTOBUF}
            connection.request("POST", "/v1/traces", body, headers)
            response = connection.getresponse()
            answer = response.read()
            is_kept = (response.status, answer) == (200, b"")
            wrong = None if is_kept else f"good request: {response.status} {answer!r}"
            report.count(f"http {response.status}", wrong, span_id)
            continue
        content_type = choose(CONTENT_TYPES)
        encoding = choose((*COMPRESSIONS, "br"))
        body = COMPRESSIONS.get(choose((encoding, encoding, encoding, "gzip")), bytes)(
            mutator.body(is_json=content_type.startswith(JSON))
        )
        if mutator.random.random() < 0.1:
            body = body[: mutator.random.randrange(len(body) + 1)]
        path = choose((*HTTP_PATHS.values(), HTTP_PATHS[mutator.signal()], "/v1/nothing"))
        method = choose(("POST",) * 30 + ("PUT", "GET"))
        headers = {"Content-Type": content_type, "Content-Encoding": encoding}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        wrong = _wrong_http(
            response.status, content_type, response.getheader("Content-Type"), answer
        )
        if wrong is not None:
            wrong = f"{method} {path} {headers}: {wrong}"
        report.count(f"http {response.status}", wrong)
    connection.close()


def _wrong_http(status: int, asked: str, answered: str | None, answer: bytes) -> str | None:
    """Return what is wrong with an answer: its status, its type, or an error without a Status that says why."""
    is_json = asked.startswith(JSON)
    if status not in HTTP_STATUSES:
        return f"answered {status} {answer!r}"
    if answered is None or not answered.startswith(JSON if is_json else PROTOBUF):
        return f"answered {status} as {answered}"
    if status != 200:
        message = json.loads(answer)["message"] if is_json else Status.FromString(answer).message
        if not message.startswith("cannot "):
            return f"answered {status} with {message!r}"
    return None


def _fuzz_grpc(receiver: ReceiverProcess, count: int, mutator: Mutator, report: FuzzReport) -> None:
    compressions = (grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate)
    with grpc.insecure_channel(receiver.grpc) as channel:
        methods = {signal: channel.unary_unary(path) for signal, path in GRPC_PATHS.items()}
        pending: list[tuple[str | None, Any]] = []
        for number in range(count):
            if number % GOOD_INTERVAL == 0:
                span_id, body = _good_request(3 * number + 2)
                pending.append((span_id, methods[Signal.TRACES].future(body, timeout=60)))
            else:
                body = mutator.body(is_json=mutator.random.random() < 0.05)
                method = methods[mutator.signal()]
                call = method.future(
                    body, timeout=60, compression=mutator.random.choice(compressions)
                )
                pending.append((None, call))
            if len(pending) >= _PENDING_CALLS:
                _count_calls(pending, report)
                pending = []
        _count_calls(pending, report)


def _fuzz_frames(
    receiver: ReceiverProcess, count: int, mutator: Mutator, report: FuzzReport
) -> None:
    """Send gRPC as HTTP/2 frames; some of them are mutated too, and their connection is then given up."""
    chance = mutator.random
    client, stream = Http2Client(receiver.grpc), 1
    for number in range(count):
        span_id, body = _good_request(3 * number + 3)
        is_good = number % GOOD_INTERVAL == 0
        sent = client.request(stream, body) if is_good else _frames(mutator, client, stream)
        wrong = None
        if not is_good and chance.random() < 0.2:
            at = chance.randrange(len(sent))
            client.send(sent[:at] + chance.randbytes(chance.choice((1, 2, 9))) + sent[at + 1 :])
            client.socket.shutdown(socket.SHUT_WR)
            frames = client.read_to_end()
            client.socket.close()
            answer = f"frames end with {frames[-1].kind if frames else 'nothing'}"
            client, stream = Http2Client(receiver.grpc), 1
        else:
            client.send(sent)
            answered = client.read_answer(stream)
            code = answered.status or answered.fields[":status"]
            answer = f"frames {code}"
            stream += 2
            is_wrong = code not in FRAME_CODES or (code != "0" and not answered.fields)
            if is_wrong or (is_good and code != "0"):
                wrong = f"frames: {answered}"
        report.count(answer, wrong, span_id if is_good else None)
    client.socket.close()


def _frames(mutator: Mutator, client: Http2Client, stream: int) -> bytes:
    chance = mutator.random
    encoding = chance.choice((*COMPRESSIONS, "br"))
    flag = chance.choice((0, 1, 1, 1, 1, 1, 2))
    packed = COMPRESSIONS.get(encoding, bytes)(mutator.body(is_json=False))
    body = message(packed, flag)
    if chance.random() < 0.1:
        body = body[: chance.randrange(len(body) + 1)]
    at = chance.randrange(len(body) + 1)
    path = GRPC_PATHS[mutator.signal()]
    fields = grpc_fields(chance.choice((path, path, path, "/x")), grpc_encoding=encoding)
    parts = (frame(DATA, 0, stream, body[:at]), frame(DATA, END_STREAM, stream, body[at:]))
    return client.headers(stream, fields) + b"".join(parts)


def _count_calls(pending: list[tuple[str | None, Any]], report: FuzzReport) -> None:
    for good_span_id, call in pending:
        code = call.code().name
        wrong = None
        if good_span_id is not None and code != "OK":
            wrong = f"good request by grpc: {code} {call.details()}"
        elif code not in GRPC_CODES or (code != "OK" and not call.details()):
            wrong = f"grpc: {code} {call.details()}"
        report.count(f"grpc {code}", wrong, good_span_id)


def mutations(seed: int, *, is_json: bool) -> Iterator[bytes]:
    """Yield mutated requests without end, for a decoder without a server around it."""
    mutator = Mutator(seed)
    while True:
        yield mutator.body(is_json=is_json)
