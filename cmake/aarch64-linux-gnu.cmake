# Cross-compiles for Linux on aarch64 with the compiler of Debian's g++-aarch64-linux-gnu. docs/building.md has the command.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
