#!/bin/sh
# In a test machine that has the files of its host: what can be read on this kernel, and the tests of the kernel programs.
cd "$1" || exit 1
export HOME=/tmp LANG=C.UTF-8 CI=true
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
results=/mnt/results
# A slow machine is not a silent one, which is given up.
while sleep 20 && read -r up _ </proc/uptime; do echo "(up for $up s)"; done &
.venv/bin/rootwalk check --json >$results/check.json
.venv/bin/python -m pytest tests/integration/ebpf --timeout=60 -m "bpf and not slow and not long and not variant" -v --color=no -p no:cacheprovider --durations=10 \
  --junit-prefix=kernel --junitxml=$results/junit.xml
echo $? >$results/exit-code
sync
echo o >/proc/sysrq-trigger
sleep 60
