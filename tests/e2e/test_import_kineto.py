"""The installed command on public profiles: import, and the verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.command import query, run_rootwalk

PUBLIC = Path(__file__).parents[1] / "data" / "kineto"
SLOW = PUBLIC / "num_workers_0-worker0.pt.trace.json.gz"
HEALTHY = PUBLIC / "num_workers_4-worker0.pt.trace.json.gz"


def test_the_slow_one_of_a_pair_is_host_input_and_the_other_is_not_accused(tmp_path: Path) -> None:
    for name, path in (("slow", SLOW), ("healthy", HEALTHY)):
        store = f"{name}.duckdb"
        done = run_rootwalk("import", "kineto", str(path), "--store", store, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"1 file into {store}: 85 spans, ")
        assert re.search(r", \d+ profile samples\n$", done.stdout)
    slow = run_rootwalk("diagnose", "slow.duckdb", "--json", "--exit-code", cwd=tmp_path)
    (finding,) = json.loads(slow.stdout)["findings"]
    assert (slow.returncode, finding["reason"], finding["layer"]) == (
        4,
        "DATALOADER_CPU",
        "application",
    )
    healthy = run_rootwalk("diagnose", "healthy.duckdb", "--json", "--exit-code", cwd=tmp_path)
    assert healthy.returncode == 3
    assert json.loads(healthy.stdout)["findings"] == []


def test_a_file_that_is_no_profile_is_one_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"traceEvents": [')
    done = run_rootwalk(
        "import", "kineto", "rank0.json", str(SLOW), "--store", "s.duckdb", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith('rootwalk import: "rank0.json", byte 17: cannot read the profile: saw')
    assert second.startswith("hint: ")
    rows = query(Path("s.duckdb"), "SELECT count(*) AS steps FROM steps", cwd=tmp_path)
    assert rows == [{"steps": 6}]
