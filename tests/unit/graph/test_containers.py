"""Container and pod by the path of a control group, in the forms that runtimes and kubelets give it."""

from __future__ import annotations

import pytest

from rootwalk.graph.containers import container_of, pod_of

ID = "0123456789abcdef" * 4
UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
STATIC = "d8b5c1f2a3e4d5c6b7a8091a2b3c4d5e"
SYSTEMD = (
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
)


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        (f"{SYSTEMD}/cri-containerd-{ID}.scope", ID, UID),
        (f"{SYSTEMD}/crio-{ID}.scope", ID, UID),
        (f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/docker-{ID}.scope", ID, UID),
        (f"/kubepods/burstable/pod{UID}/{ID}", ID, UID),
        (f"/kubepods/pod{UID}/{ID}/worker", ID, UID),
        (f"/kubelet.slice/kubelet-kubepods.slice{SYSTEMD}/cri-containerd-{ID}.scope", ID, UID),
        (
            f"/system.slice/containerd.service/kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
            f":cri-containerd:{ID}",
            *(ID, UID),
        ),
        (f"/kubepods/besteffort/pod{STATIC}/{ID}", ID, STATIC),
        (f"/docker/{ID}", ID, None),
        (f"/docker/{'f' * 64}/kubepods/besteffort/pod{UID}/{ID}", ID, UID),
        (f"/system.slice/docker-{ID}.scope", ID, None),
        (f"/machine.slice/libpod-{ID}.scope/container", ID, None),
        (f"/kubepods/besteffort/pod{UID}", None, UID),
        (f"/machine.slice/libpod-conmon-{ID}.scope", None, None),
        (f"{SYSTEMD}/crio-conmon-{ID}.scope", None, UID),
        ("/system.slice/node_exporter.service", None, None),
        ("/slurm/uid_0/job_12/step_0", None, None),
        (f"/tripod{UID}", None, None),
        ("/", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_forms(cgroup: str | None, container: str | None, pod: str | None) -> None:
    assert (container_of(cgroup), pod_of(cgroup)) == (container, pod)
