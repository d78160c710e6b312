"""NVIDIA GPUs, read with NVML in a process of its own: a driver that hangs costs that process and nothing else."""
