"""`python -m rootwalk.graph` is the `rootwalk` command."""

from rootwalk.graph.cli import main

raise SystemExit(main())
