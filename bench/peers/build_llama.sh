#!/usr/bin/env bash
# llama-bench for this machine's processor, from the sources that a package on PyPI carries.
# bench/peers/build_llama.sh DIR: leaves DIR/llama-bench. Needs python3 with pip, and g++.
set -euo pipefail
dir=${1:?a folder to build in}
version=0.3.36
mkdir -p "$dir"
cd "$dir"
[ -d venv ] || python3 -m venv venv
venv/bin/pip install -q cmake ninja
venv/bin/pip download -q --no-deps --no-binary llama-cpp-python -d . "llama-cpp-python==$version"
tar xzf "llama_cpp_python-$version.tar.gz"
PATH=$PWD/venv/bin:$PATH
cmake -S "llama_cpp_python-$version/vendor/llama.cpp" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
  -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF >cmake.log
ninja -C build llama-bench
cp build/bin/llama-bench .
