"""When to ask whether a job loses time that it has lost since its first step, or loses now and then.

    step    1 ............. 21 ....... 32 ......... 48 ....      asked each time there are half as many more
                       asked       asked                  asked       while nothing is found; then as an episode is

Detection compares a job with its own past: what was always there is no episode. So a job without an open episode is
diagnosed as a whole as soon as it has a history, and then ever more rarely. Pure: asks nobody itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from rootwalk.graph.detect import MIN_HISTORY_STEPS
from rootwalk.graph.live.pace import Pace
from rootwalk.graph.live.track import EpisodeSpan
from rootwalk.graph.model import Verdict

__all__ = ["KEPT_BEFORE", "Standing"]

# Steps before the last one that a diagnosis of the whole job reads.
KEPT_BEFORE: Final = 700
MORE_STEPS: Final = 1.5
# Once found, asked again after so long: what it costs may change, and it may end.
REFRESH_S: Final = 60.0
# So many diagnoses in a row must find nothing before it is over.
MISSES_TO_END: Final = 2


@dataclass(slots=True)
class Standing:
    """What one job has lost all the time, as last found.

    Attributes:
        span: From where to where it was found; None while nothing is.
        asked_steps: Complete steps of the job at the last diagnosis.
        pace: Of the diagnoses.
    """

    span: EpisodeSpan | None = None
    asked_steps: int = 0
    misses: int = 0
    pace: Pace = field(default_factory=Pace)

    def is_due(self, steps: int, now_s: float) -> bool:
        """Return whether to diagnose the job now.

        Args:
            steps: Complete steps that are known of it.
            now_s: Of the clock for intervals.
        """
        if steps <= MIN_HISTORY_STEPS or not self.pace.may_ask(now_s):
            return False
        if self.span is not None and self.pace.waited_s(now_s) >= REFRESH_S:
            return steps > self.asked_steps
        return steps >= MORE_STEPS * self.asked_steps

    def note(self, verdict: Verdict, steps: int, now_unix_ns: int) -> EpisodeSpan | None:
        """Enter a diagnosis of the whole job; return the stretch that its findings are of, None for none.

        Args:
            verdict: About the job as a whole.
            steps: Complete steps that were known of it.
            now_unix_ns: When it was there.
        """
        self.asked_steps = steps
        last = verdict.window.last_step
        found = verdict.findings[0] if verdict.findings and verdict.kind == "slow" else None
        if found is None or found.onset is None or found.onset.step is None or last is None:
            if self.span is None:
                return None
            self.misses += 1
            if self.misses < MISSES_TO_END:
                return self.span
            ended = replace(self.span, is_open=False)
            self.span = None
            return ended
        self.misses = 0
        detected = now_unix_ns if self.span is None else self.span.detected_unix_ns
        onset_unix_ns = found.onset.unix_ns or now_unix_ns
        self.span = EpisodeSpan(found.onset.step, last, True, onset_unix_ns, detected)
        return self.span
