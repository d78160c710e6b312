"""A program that writes to an address that is not its own, on the first GPU: the driver reports Xid 31 and ends it.

No other program is harmed: the error is of this one's context. Ends with 0 when the device has refused.
"""

from __future__ import annotations

import ctypes
import sys

REFUSED = (700, 716, 717, 719)  # illegal or misaligned address, address space, launch failure
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry wild()
{
    .reg .b64 %address;
    mov.u64 %address, 0x7f00deadbee0;
    st.global.u32 [%address], 1;
    ret;
}
\0"""


def main() -> int:
    """Return 0 when the device refused the write."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    done = [
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
        cuda.cuModuleLoadData(ctypes.byref(module), PTX),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"wild"),
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    ]
    ended = cuda.cuCtxSynchronize()
    sys.stdout.write(f"{done} {ended}\n")
    return 0 if not any(done) and ended in REFUSED else 1


if __name__ == "__main__":
    sys.exit(main())
