"""Which container and pod a process runs in: container runtimes and kubelets write both into its control group's path.

    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_...slice/cri-containerd-<64 hex>.scope
    /kubepods/besteffort/pod1b4e28ba-2fa1-.../<64 hex>
    /system.slice/docker-<64 hex>.scope          no pod
    /user.slice/.../libpod-<64 hex>.scope        no pod

systemd has no dashes in a part of a name, so kubelets write `_` for them. A static pod's id has none. Pure.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["container_of", "pod_of"]

_HEX: Final = "[0-9a-f]"
_CONTAINER: Final = re.compile(
    rf"(?:^|[/:])(?:(?:cri-containerd|containerd|docker|crio|libpod)-)?({_HEX}{{64}})(?:\.scope)?(?=[/:]|$)"
)
_POD: Final = re.compile(
    rf"(?:^|[/:-])pod({_HEX}{{32}}|{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}})(?:\.slice)?(?=[/:]|$)"
)


def container_of(cgroup: str | None) -> str | None:
    """Return the id of the innermost container, 64 hexadecimal digits; None outside of any.

    >>> container_of("/system.slice/docker-" + 64 * "a" + ".scope") == 64 * "a"
    True
    """
    found = _CONTAINER.findall(cgroup or "")
    return found[-1] if found else None


def pod_of(cgroup: str | None) -> str | None:
    """Return the uid of the pod, as the API server writes it; None outside of any.

    >>> pod_of("/kubepods.slice/kubepods-pod1b4e28ba_2fa1_11d2_883f_0016d3cca427.slice")
    '1b4e28ba-2fa1-11d2-883f-0016d3cca427'
    """
    found = _POD.findall(cgroup or "")
    return found[-1].replace("_", "-") if found else None
