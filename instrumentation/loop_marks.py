"""What a training loop says of itself, where no hook sees its steps: `step` and `phase`.

    import rootwalk.instrumentation as rootwalk

    for batch in batches:
        with rootwalk.phase("forward"):
            loss = model(batch)
        ...
        rootwalk.step()

For optimisers that are not PyTorch's, compiled updates and gradients taken by `torch.autograd.grad`. From the first
`step` on only these calls end steps. Both do nothing where the instrumentation is switched off, and never raise.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from rootwalk.instrumentation.semconv import TrainingPhase
from rootwalk.instrumentation.start import start

__all__ = ["offer_on_package", "phase", "step"]

logger = logging.getLogger(__name__)

PHASES = frozenset(one.value for one in TrainingPhase)
_refused: set[str] = set()


def step() -> None:
    """Say that a step of the training loop has ended; the first call only begins the first step if none was seen."""
    runtime = start()
    if runtime is not None:
        runtime.end_step()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Say that a phase lasts as long as the block; inside another phase, or in another thread, it does not count.

    Args:
        name: A value of `semconv.TrainingPhase`, such as "forward" or "data_load"; others are ignored with a warning.
    """
    runtime = start()
    if name not in PHASES:
        if name not in _refused:
            _refused.add(name)
            logger.warning(
                'phase "%s" is not recorded: needs one of %s', name, ", ".join(sorted(PHASES))
            )
        yield
        return
    is_counted = runtime is not None and runtime.begin_phase(name)
    try:
        yield
    finally:
        if runtime is not None and is_counted:
            if name == TrainingPhase.OPTIMIZER:
                runtime.end_optimizer()
            else:
                runtime.end_phase()


def offer_on_package() -> None:
    """Let `import rootwalk` have both, once the instrumentation runs: the package is a namespace without a file."""
    package = sys.modules.get("rootwalk")
    for function in (step, phase):
        if package is not None and not hasattr(package, function.__name__):
            setattr(package, function.__name__, function)
