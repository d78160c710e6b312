"""Control groups with a CPU limit, on folders that look like the kernel's."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from rootwalk.graph.commands.cpu_limit import (
    CpuLimit,
    GroupTree,
    find_group_tree,
    remove_leftovers,
)
from rootwalk.instrumentation.errors import UnavailableError

V1 = "33 32 0:29 {root} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "35 24 0:30 {root} {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
DISK = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"


@pytest.fixture(autouse=True)
def _kernel_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing a group removes the kernel's files in it; in real folders they would be in the way."""
    monkeypatch.setattr(Path, "rmdir", lambda path: shutil.rmtree(path))


def make_proc(folder: Path, mounts: str, groups: str) -> Path:
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text(DISK + mounts, encoding="utf-8")
    (proc / "self/cgroup").write_text(groups, encoding="utf-8")
    return proc


def make_v2(folder: Path, *, path: str, controllers: str = "cpuset cpu io memory") -> GroupTree:
    mount = folder / "cgroup"
    own = mount / path
    own.mkdir(parents=True)
    for group in [own, *own.parents]:
        if group.is_relative_to(mount):
            (group / "cgroup.controllers").write_text(controllers + "\n", encoding="ascii")
            (group / "cgroup.subtree_control").write_text("memory\n", encoding="ascii")
    return GroupTree(2, mount, own)


def refuse_writes(monkeypatch: pytest.MonkeyPatch, refused: dict[Path, int]) -> None:
    """Let the kernel say no to writes to some files."""
    write_text = Path.write_text

    def write(path: Path, text: str, encoding: str | None = None) -> int:
        if path in refused:
            raise OSError(refused[path], os.strerror(refused[path]))
        return write_text(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", write)


def test_finds_version_1_beside_version_2(tmp_path: Path) -> None:
    mounts = V2.format(root="/", mount="/sys/u") + V1.format(root="/", mount=r"/sys/a\040b")
    proc = make_proc(tmp_path, mounts, "3:cpuset:/x\n1:cpu,cpuacct:/jobs/7\n0::/slice\n")
    assert find_group_tree(proc) == GroupTree(1, Path("/sys/a b"), Path("/sys/a b/jobs/7"))


def test_finds_version_2_below_the_root_of_its_mount(tmp_path: Path) -> None:
    tree = make_v2(tmp_path, path="scope")
    mounts = V2.format(root="/docker/abc", mount=tree.mount)
    assert find_group_tree(make_proc(tmp_path, mounts, "0::/docker/abc/scope\n")) == tree


@pytest.mark.parametrize(
    ("controllers", "groups"),
    [("memory pids", "0::/scope\n"), ("cpu", "0::/../other\n"), ("cpu", "4:memory:/scope\n")],
)
def test_refuses_without_a_cpu_controller(tmp_path: Path, controllers: str, groups: str) -> None:
    tree = make_v2(tmp_path, path="scope", controllers=controllers)
    mounts = V2.format(root="/inner" if ".." in groups else "/", mount=tree.mount)
    with pytest.raises(UnavailableError, match="no control group with the cpu controller") as saw:
        find_group_tree(make_proc(tmp_path, mounts, groups))
    assert saw.value.reason == "NO_CPU_CONTROLLER"


def test_version_1_limits_below_its_own_group(tmp_path: Path) -> None:
    tree = GroupTree(1, tmp_path, tmp_path / "job")
    tree.own.mkdir()
    limit = CpuLimit.create(tree, 0.5)
    assert limit.group.parent == tree.own
    assert (limit.group / "cpu.cfs_period_us").read_text() == "100000"
    assert (limit.group / "cpu.cfs_quota_us").read_text() == "50000"
    assert limit.add_tree(os.getpid()) >= 1
    assert (limit.group / "cgroup.procs").exists()
    limit.remove()
    limit.remove()
    assert list(tree.own.glob("rootwalk*")) == []


def test_version_2_switches_the_controller_on_and_off_again(tmp_path: Path) -> None:
    tree = make_v2(tmp_path, path="")
    limit = CpuLimit.create(tree, 1.5)
    assert limit.group.parent == tree.mount
    assert (limit.group / "cpu.max").read_text() == "150000 100000"
    assert (tree.mount / "cgroup.subtree_control").read_text() == "+cpu"
    limit.remove()
    assert (tree.mount / "cgroup.subtree_control").read_text() == "-cpu"


def test_version_2_leaves_a_controller_that_was_on(tmp_path: Path) -> None:
    tree = make_v2(tmp_path, path="")
    (tree.own / "cgroup.subtree_control").write_text("cpu memory\n")
    CpuLimit.create(tree, 1.0).remove()
    assert (tree.own / "cgroup.subtree_control").read_text() == "cpu memory\n"


def test_version_2_goes_up_where_a_group_has_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes and limited groups cannot be in one group: the new one is beside this process's own."""
    tree = make_v2(tmp_path, path="slice/session")
    refuse_writes(monkeypatch, {tree.own / "cgroup.subtree_control": errno.EBUSY})
    limit = CpuLimit.create(tree, 0.5)
    assert limit.group.parent == tree.mount / "slice"
    limit.remove()


@pytest.mark.parametrize("version", [1, 2])
def test_refusal_names_every_group_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    tree = make_v2(tmp_path, path="session")

    def refuse(path: Path, *_args: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        UnavailableError, match=r'/session": permission denied, ".*permission'
    ) as saw:
        CpuLimit.create(GroupTree(version, tree.mount, tree.own), 0.5)
    assert saw.value.reason == "NO_CGROUP_ACCESS"
    assert "run as root" in (saw.value.hint or "")


def test_a_limit_that_the_kernel_refuses_leaves_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = GroupTree(1, tmp_path, tmp_path)
    name = CpuLimit.create(tree, 1.0).group
    shutil.rmtree(name)
    refuse_writes(monkeypatch, {name / "cpu.cfs_quota_us": errno.EINVAL})
    with pytest.raises(UnavailableError, match="invalid argument"):
        CpuLimit.create(tree, 1.0)
    assert not name.exists()


def test_leftovers_are_told_from_the_groups_of_running_processes(tmp_path: Path) -> None:
    """Pid 7 runs since tick 50: group 7-50 is its own, 7-40 is an earlier process's with that number, 8 is gone."""
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7/stat").write_text(f"7 (a) b) S {'0 ' * 18}50 0", encoding="utf-8")
    tree = GroupTree(1, tmp_path / "groups", tmp_path / "groups/job")
    names = ["job/rootwalk-limit-7-50", "job/rootwalk-limit-7-40", "rootwalk-limit-8-50", "other"]
    for name in names:
        (tree.mount / name).mkdir(parents=True)
    (tree.mount / names[2] / "cgroup.procs").write_text("123\n")
    assert remove_leftovers(tree, proc) == [tree.mount / names[1], tree.mount / names[2]]
    assert [(tree.mount / name).is_dir() for name in names] == [True, False, False, True]
    assert (tree.own / "cgroup.procs").read_text() == "123", "goes on without the limit"
