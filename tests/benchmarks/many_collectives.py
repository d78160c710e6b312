"""The example with about fifty collectives a step: DDP gets a bucket for every parameter.

    torchrun many_collectives.py TRAINING_OPTIONS...

Four layers have 52 parameters. The script itself is the example, unchanged.
"""

from __future__ import annotations

import functools
import runpy
import sys
from pathlib import Path

import rootwalk.examples

EXAMPLE = Path(next(iter(rootwalk.examples.__path__))) / "train_ddp.py"
# A byte: every parameter is larger than that.
BUCKET_MB = 1e-6
LAYERS = "4"


def give_every_parameter_a_bucket() -> None:
    """Replace the class by one call of it, where the example will find it."""
    from torch.nn import parallel

    parallel.DistributedDataParallel = functools.partial(
        parallel.DistributedDataParallel, bucket_cap_mb=BUCKET_MB
    )


def main() -> None:
    """Train."""
    give_every_parameter_a_bucket()
    sys.argv = [str(EXAMPLE), "--layers", LAYERS, *sys.argv[1:]]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


if __name__ == "__main__":
    main()
