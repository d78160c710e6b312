"""A user's program under `opentelemetry-instrument`: a span of its own, a request, and three steps.

There is no PyTorch here: what its hooks do in a step is called by hand.
"""

import json
import sys

import requests
from opentelemetry import trace

URL = sys.argv[1]
IS_HOOKED = any(type(finder).__name__ == "PatchFinder" for finder in sys.meta_path)

with trace.get_tracer("user").start_as_current_span("my own span"):
    requests.get(URL, timeout=10)

from rootwalk.instrumentation.start import start  # noqa: E402

runtime = start()
for _ in range(3):
    if runtime is not None and IS_HOOKED:
        for phase in ("forward", "backward"):
            runtime.begin_phase(phase)
            runtime.end_phase()
        runtime.begin_phase("optimizer")
        runtime.end_optimizer()
sys.stdout.write(json.dumps({"is_hooked": IS_HOOKED}) + "\n")
