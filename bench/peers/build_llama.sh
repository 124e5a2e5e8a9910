#!/usr/bin/env bash
# llama-bench for this machine's processor, from the sources that a package on PyPI carries.
# bench/peers/build_llama.sh DIR [JOBS]: leaves DIR/llama-bench and DIR/version. Needs python3 with venv and pip, and g++.
# Run again after an interruption it goes on where it was.
set -euo pipefail
dir=${1:?a folder to build in}
jobs=${2:-$(nproc)}
version=0.3.36
for tool in python3 g++ tar; do
  command -v "$tool" >/dev/null || { echo "build_llama.sh: $tool is missing: install it (Debian: apt-get install python3-venv g++ tar)" >&2; exit 1; }
done
mkdir -p "$dir"
cd "$dir"
sources=llama_cpp_python-$version
if [ ! -x venv/bin/ninja ]; then
  python3 -m venv venv
  venv/bin/pip install -q cmake ninja
fi
if [ ! -d "$sources" ]; then
  venv/bin/pip download -q --no-deps --no-binary llama-cpp-python -d . "llama-cpp-python==$version"
  # under another name until it is complete
  mkdir -p unpacked
  tar xzf "$sources.tar.gz" -C unpacked
  mv "unpacked/$sources" .
fi
# GCC 12 takes _tile_loadconfig to read 8 bytes and leaves out what is written to the others, so that AMX ends in SIGILL.
sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1asm volatile("" : : "r"(\&tc) : "memory"); _tile_loadconfig(\&tc);/' \
  "$sources/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
PATH=$PWD/venv/bin:$PATH
cmake -S "$sources/vendor/llama.cpp" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
  -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF >cmake.log
ninja -C build -j "$jobs" llama-bench >ninja.log || { tail -n 30 ninja.log >&2; exit 1; }
cp build/bin/llama-bench .
echo "llama-cpp-python $version" >version
echo "$PWD/llama-bench"
