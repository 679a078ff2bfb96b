#!/usr/bin/env bash
# tools/build: if a library is installed or removed after a directory was configured, the next build detects
# it. Tested in a small tree with a pkg-config directory that is empty at first. And the build of quickstart
# has all plugins.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
for command in cmake ninja pkg-config; do
    command -v $command >/dev/null || skip "there is no $command"
done

make_tree() {
    mkdir -p tree/tools packages
    cp "$source_root/tools/build" tree/tools/
    cat >tree/CMakePresets.json <<'JSON'
{"version": 3, "configurePresets": [
  {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"}]}
JSON
    # As in Tandem's build files, in all forms that occur there.
    cat >tree/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.21)
project(small LANGUAGES NONE)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ONE IMPORTED_TARGET tandem-one>=2.0)
pkg_search_module(TWO IMPORTED_TARGET tandem-two tandem-two-c)
pkg_check_modules(THREE tandem-three)
file(APPEND ${CMAKE_BINARY_DIR}/runs.txt "one=${ONE_FOUND} two=${TWO_FOUND} three=${THREE_FOUND}\n")
CMAKE
}
# install NAME VERSION
install() { printf 'Name: %s\nDescription: a test\nVersion: %s\n' "$1" "$2" >"packages/$1.pc"; }
build() {
    PKG_CONFIG_PATH=$work/packages assert_exit 0 tree/tools/build release
    last=$(tail -1 tree/build/release/runs.txt)
    runs=$(wc -l <tree/build/release/runs.txt)
}

test_libraries_that_come_later_are_found() {
    make_tree
    build
    assert_equal "$last" "one= two= three="
    build
    assert_equal "$runs" 1 "configurations when nothing has changed"
    install tandem-three 1.0
    build
    assert_equal "$last" "one= two= three=1"
    install tandem-two-c 0.1
    install tandem-one 1.9
    build
    assert_equal "$last" "one= two=1 three=1" "with one that is too old"
    install tandem-one 2.1
    build
    assert_equal "$last" "one=1 two=1 three=1"
    assert_equal "$runs" 4 "configurations"
    rm packages/tandem-three.pc
    build
    assert_equal "$last" "one=1 two=1 three="
}

# The doctor reports a transport whose plugin is missing.
test_quickstart_builds_the_modules() {
    local targets module build_dir
    build_dir=$(dirname "$TANDEM")
    [ -f "$build_dir/build.ninja" ] || return 0 # an installed program
    targets=$(sed -n 's/.* tools\/build release \(.*\)$/\1/p' "$source_root/tools/quickstart")
    assert_contains " $targets " " modules "
    ninja -C "$build_dir" -t inputs modules >inputs.txt
    for module in ucx:ucx mpi:ompi-c; do
        pkg-config --exists "${module#*:}" || continue
        grep -q "/tandem-${module%:*}[.]dir/" inputs.txt ||
            fail "the target 'modules' lacks ${module%:*}"
    done
}

run_tests "$@"
