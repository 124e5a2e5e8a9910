# Shared by scripts/test, .ci/run and scripts/soak: running parts, counting what passed and failed.
passed=0
failed=0
began=$(date +%s)

# Whether --only leaves this part in.
wants() { [ -z "${only:-}" ] || [ "$only" = "$1" ]; }

part() { printf '\n== %s (minute %d)\n' "$1" $((($(date +%s) - began) / 60)); }

# check NAME COMMAND...: one thing that holds or does not.
check() {
  local name=$1
  shift
  part "$name"
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $name"; fi
}

# Adds the counts that a runner printed; a runner that failed without counting counts as one failure.
count() { # count STATUS LOG PASSED_PATTERN FAILED_PATTERN
  local p f
  p=$(grep -oE "$3" "$2" | grep -oE '[0-9]+' | awk '{ s += $1 } END { print s + 0 }')
  f=$(grep -oE "$4" "$2" | grep -oE '[0-9]+' | awk '{ s += $1 } END { print s + 0 }')
  [ "$1" -ne 0 ] && [ "$f" -eq 0 ] && f=1
  passed=$((passed + p))
  failed=$((failed + f))
}

# rust_tests [VAR=VALUE...] COMMAND...
rust_tests() {
  part "cargo test"
  local log
  log=$(mktemp)
  env "$@" 2>&1 | tee "$log" | grep -vE '^(test .* ok|running [0-9]+ tests?|)$'
  count "${PIPESTATUS[0]}" "$log" 'test result: [A-Za-z]+\. [0-9]+ passed' '[0-9]+ failed;'
  rm -f "$log"
}

# python_tests [VAR=VALUE...] FOLDER...: each folder has its own conftest.py, so each is a run of its own. With $python, or with the
# environment of most tests.
python_tests() {
  local variables=() log
  while [[ $1 == *=* ]]; do variables+=("$1"); shift; done
  for folder in "$@"; do
    part "pytest $folder"
    log=$(mktemp)
    env "${variables[@]}" "${python:-$state/venv/bin/python}" -m pytest -q -p no:cacheprovider --durations=5 "$folder" 2>&1 | tee "$log"
    count "${PIPESTATUS[0]}" "$log" '[0-9]+ passed' '[0-9]+ (failed|error)'
    if grep -qE '[0-9]+ skipped' "$log"; then echo "FAILED: a skipped test tests nothing"; failed=$((failed + 1)); fi
    rm -f "$log"
  done
}

# venv FOLDER REQUIREMENTS...: a Python environment with these packages.
venv() {
  local folder=$1
  shift
  part "Python packages"
  if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
    local sudo=""
    [ "$(id -u)" -ne 0 ] && sudo=sudo
    $sudo apt-get update -q && $sudo apt-get install -qy python3 python3-venv python3-pip
  fi
  [ -x "$folder/bin/python" ] || python3 -m venv "$folder"
  local files=()
  for file in "$@"; do files+=(-r "$file"); done
  if "$folder/bin/python" -m pip install -q --disable-pip-version-check "${files[@]}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: pip install"
  fi
}

# Clang 19, its sanitizers and Python, where they are missing.
need_clang() {
  if ! command -v clang++-19 >/dev/null || ! command -v llvm-symbolizer-19 >/dev/null || ! ls /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.tsan-* >/dev/null 2>&1; then
    local sudo=""
    [ "$(id -u)" -ne 0 ] && sudo=sudo
    $sudo apt-get update -q && $sudo apt-get install -qy clang-19 llvm-19 libclang-rt-19-dev python3
  fi
}

# address_spaces SHIMS OPTIONS... FILE: parses a text. The generic address space is off: an unqualified pointer is then a private one,
# as strict as Metal's rule.
address_spaces() {
  local shims=$1
  shift
  clang-19 -x clcpp -cl-std=clc++2021 -cl-no-stdinc --target=x86_64-linux-gnu -Wno-unknown-attributes -fsyntax-only -I "$shims/ocl" \
    -Xclang -cl-ext=-__opencl_c_generic_address_space,-__opencl_c_device_enqueue,-__opencl_c_pipes "$@"
}

# caught PATTERN COMMAND...: the command must fail and say so.
caught() {
  local pattern=$1 output
  shift
  if output=$("$@" 2>&1 </dev/null); then echo "nothing was caught"; return 1; fi
  grep -qE -- "$pattern" <<<"$output" || { echo "wanted /$pattern/, got:"; head -n 20 <<<"$output"; return 1; }
}

# The last line, and the exit status: for `trap summary EXIT`.
summary() {
  printf '\n%d minutes\n%d passed, %d failed\n' $((($(date +%s) - began + 30) / 60)) "$passed" "$failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] || exit 1
}
