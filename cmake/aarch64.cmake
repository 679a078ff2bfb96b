# Cross-builds for 64-bit ARM with Debian's cross compiler. `tools/setup --portable` installs that compiler and
# unpacks the libraries that Tandem links with into build/aarch64-root, so that nothing of another architecture
# is installed on this system. Programs run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

get_filename_component(aarch64_root ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${aarch64_root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_FLAGS_INIT "-isystem ${aarch64_root}/usr/include/aarch64-linux-gnu -isystem ${aarch64_root}/usr/include")
set(ENV{PKG_CONFIG_LIBDIR} ${aarch64_root}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${aarch64_root})

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
