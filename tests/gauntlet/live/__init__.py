"""Jobs that hang, end or only take long under `rootwalk run`, watched while they do: no dump is taken by the test."""
