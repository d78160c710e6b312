#!/bin/sh
# In a test machine of another architecture, with Debian's files for it: as host_files.sh, with what is written in Python
# of the environment in .venv. Not all of it is: plugins by name, no conftest above. Of tests that are marked flaky,
# which are most of the time, only those of waits: their program reads registers. Stacks are not read there, and nothing
# is trained: that needs packages with compiled code.
cd "$1" || exit 1
export HOME=/tmp LANG=C.UTF-8 CI=true PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PYTHONPATH="$1/.editable:$(echo "$1"/.venv/lib/python3.*/site-packages)"
export PYTHONPATH
results=/mnt/results
# A slow machine is not a silent one, which is given up.
while sleep 20 && read -r up _ </proc/uptime; do echo "(up for $up s)"; done &
mkdir -p /tmp
python3 -m rootwalk.graph check --json >$results/check.json
python3 -m pytest tests/integration/ebpf --ignore-glob='*/test_stack*' --ignore-glob='*/test_snapshots*' --ignore-glob='*/test_agent_progress*' --timeout=60 -m "bpf and not slow and not long and not variant" -k "test_waits or not flaky" -v --color=no \
  --confcutdir="$1/tests/integration/ebpf" -p no:cacheprovider -p pytest_timeout -p pytest_rerunfailures --durations=10 --junit-prefix=kernel.arm64 --junitxml=$results/junit.xml
echo $? >$results/exit-code
sync
echo o >/proc/sysrq-trigger
sleep 60
