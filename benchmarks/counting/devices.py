"""What the SMs of NVIDIA's GPUs can hold and do: published, or assumed. Nothing here was measured by this project.

Limits of an SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".

Multiply-adds per clock and SM are those of dense bfloat16 products with float32 sums by `mma.sync`; tf32 has half:
- A100: whitepaper "NVIDIA A100 Tensor Core GPU Architecture", 1,024; 312 TFLOP/s.
- RTX 3090, 4090 and 5090: NVIDIA's architecture whitepapers, 71, 165.2 and 209.5 TFLOP/s. That is 256, because GeForce
  cards sum in float32 at half of the rate. Data-centre and workstation GPUs of these architectures may do more.
- H200: `wgmma` does 2,048 (989 TFLOP/s, H100 datasheet). `mma.sync` reaches 62% of that on average (Luo and others,
  "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", arXiv 2402.13499).
- B200: not published for `mma.sync`; the A100's rate is an assumption.

XLA's products use `wgmma` on sm_90 and `tcgen05` on sm_100. The latter does 4,096 (2,250 TFLOP/s, B200 datasheet).

L2 cache sizes: the same whitepapers and datasheets.

SMs, boost clocks and device memory: the same whitepapers and the datasheets of H200 and B200. These datasheets do not
state a clock, so both clocks are assumptions. For the H200, 989 TFLOP/s at 2,048 multiply-adds imply 1.83 GHz, with
which its times would be up to 4% shorter. L2 cache: 5,120 bytes per clock on A100 (whitepaper). The H200 is assumed to
have 3,500, which are 6.1 TB/s, and the other caches as much per SM: no rates are published.
"""

from typing import NamedTuple

SCHEDULERS = 4  # of an SM; each issues one instruction of a warp per clock
REGISTERS, REGISTER_UNIT, WARP = 65536, 256, 32  # of an SM; warps get registers in units
RESERVED_SHARED = 1 << 10  # bytes of shared memory that a resident block takes beyond its own
ASSUMED_L2_BYTES = 26  # per clock and SM, where it is not published: as on the H200
MMA_OPERATIONS = {"bf16": 16 * 8 * 16, "f16": 16 * 8 * 16, "tf32": 16 * 8 * 8}  # multiply-adds of an instruction

ASSUMED_H200 = "the clock and the rate of the L2 cache"
ASSUMED_B200 = "the clock and the rate of `mma.sync`"


class Device(NamedTuple):
    """An architecture's SM, and one GPU that has it."""

    architecture: str
    max_warps: int  # resident, per SM
    max_blocks: int
    shared_bytes: int  # per SM
    gpu: str
    sms: int
    clock: float  # GHz
    multiply_adds: float  # of 16-bit products per clock and SM
    memory: float  # GB/s
    products: float  # multiply-adds of XLA's 16-bit products per clock and SM
    l2_size: int  # MB
    l2_bytes: int | None = None  # per clock
    assumed: str = ""  # which of these are not published

    def clocks(self, mma_type):
        """Clocks of an SM for one tensor core instruction."""
        rate = self.multiply_adds / (2 if mma_type == "tf32" else 1)
        return MMA_OPERATIONS[mma_type] / rate

    @property
    def l2_rate(self):
        """Bytes per clock, of all SMs."""
        return self.l2_bytes or ASSUMED_L2_BYTES * self.sms


DEVICES = {
    device.architecture: device
    for device in (
        Device("sm_80", 64, 32, 164 << 10, "A100", 108, 1.41, 1024, 2039, 1024, 40, 5120),
        Device("sm_86", 48, 16, 100 << 10, "RTX 3090", 82, 1.695, 256, 936, 256, 6),
        Device("sm_89", 48, 24, 100 << 10, "RTX 4090", 128, 2.52, 256, 1008, 256, 72),
        Device("sm_90", 64, 32, 228 << 10, "H200", 132, 1.755, 0.62 * 2048, 4800, 2048, 50, 3500, ASSUMED_H200),
        Device("sm_100", 64, 32, 228 << 10, "B200", 148, 1.85, 1024, 8000, 4096, 126, None, ASSUMED_B200),
        Device("sm_120", 48, 24, 100 << 10, "RTX 5090", 170, 2.407, 256, 1792, 256, 96),
    )
}


class Occupancy(NamedTuple):
    blocks: int  # resident per SM
    warps: int
    limit: str  # registers, shared memory, warps or blocks


def registers_of_warp(registers):
    """How many registers a warp takes whose threads have `registers` each."""
    return -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT


def occupancy(device, registers, shared_bytes, threads):
    warps = -(-threads // WARP)
    # The registers of an SM belong to its schedulers, among which the warps of all blocks are divided evenly.
    warps_of_registers = REGISTERS // SCHEDULERS // registers_of_warp(registers) * SCHEDULERS
    limits = {
        "registers": warps_of_registers // warps,
        "shared memory": device.shared_bytes // (shared_bytes + RESERVED_SHARED),
        "warps": device.max_warps // warps,
        "blocks": device.max_blocks,
    }
    limit = min(limits, key=limits.get)
    return Occupancy(limits[limit], limits[limit] * warps, limit)
