"""`python -m jax_dcn`: what was built, and what a computation on this machine's default device will run."""

from importlib.metadata import version

import jax

from jax_dcn._operators.kernel_plan import platform_of
from jax_dcn._primitive import extension


def main() -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax_dcn", "jax", "jaxlib", "flax"))
    print(versions)
    for platform in extension.PLATFORMS:
        module = extension.modules.get(platform)
        if module is None:
            print(f"{platform} kernels: not built")
        else:
            api = ".".join(map(str, module.ffi_api_version))
            print(f"{platform} kernels: built by {module.compiler}, XLA FFI API {api}")
    device = jax.devices()[0]
    print(
        f"default device: {device.device_kind} ({device.platform}), which will run {_running_on(platform_of(device))}"
    )


def _running_on(platform: str) -> str:
    if platform in extension.modules:
        return f"the {platform} kernels"
    if platform in extension.PLATFORMS:
        return (
            f"nothing of jax_dcn until the {platform} kernels are built, in its source folder:\n"
            f"  {extension.BUILD_CUDA}"
        )
    return "the jax.numpy reference"


if __name__ == "__main__":
    main()
