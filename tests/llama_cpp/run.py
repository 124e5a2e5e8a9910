"""llama.cpp's own server tests, pointed at `lily serve`: python run.py LILY_BINARY [PYTEST ARGUMENTS].

Their code is not part of this repository: the source package of llama-cpp-python, which holds it, is fetched from the package index
into target/llama-cpp-tests. Only conftest.py is ours: it starts `lily serve` where a test asks for llama.cpp's server. What passes,
and why the rest does not: docs/llama-cpp-tests.md, against which `--compare` checks the run.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "0.3.36"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "target" / "llama-cpp-tests"
INSIDE = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/tools/server/tests/"
# What their tests import. Nothing of llama-cpp-python itself is installed.
NEEDS = ["aiohttp", "filelock", "numpy", "openai==2.14.0", "prometheus-client", "pytest", "pytest-timeout", "requests", "anthropic"]
# Features of another program: nothing of them exists here, and most of these wait for a server that does not come.
LEFT_OUT = ["test_router.py", "test_mcp_servers.py", "test_proxy.py", "test_tools_builtin.py"]


def prepare():
    venv = WORK / "venv"
    python = venv / "bin" / "python"
    if not venv.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *NEEDS], check=True)
    tests = WORK / "tests"
    if not tests.exists():
        # pip asks the package's build for its name, in an environment of its own: what builds it need not be on this machine.
        pip = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        archive = WORK / f"llama_cpp_python-{VERSION}.tar.gz"
        if not archive.exists():
            subprocess.run([*pip, "-d", str(WORK), f"llama-cpp-python=={VERSION}"], check=True)
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                if member.name.startswith(INSIDE) and member.isfile():
                    member.name = member.name.removeprefix(INSIDE)
                    tar.extract(member, tests, filter="data")
        # Imported and never used where nothing is downloaded.
        (tests / "wget.py").write_text("")
    shutil.copy(HERE / "conftest.py", tests / "conftest.py")
    return tests, python


def main():
    binary, rest = Path(sys.argv[1]).resolve(), sys.argv[2:]
    compare = "--compare" in rest
    tests, python = prepare()
    ignored = [f"--ignore=unit/{name}" for name in LEFT_OUT]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", "-rA", "--tb=line", *ignored]
    environment = os.environ | {"LILY_BIN": str(binary)}
    done = subprocess.run([*command, *(a for a in rest if a != "--compare")], cwd=tests, env=environment, capture_output=True, text=True)
    (WORK / "log.txt").write_text(done.stdout + done.stderr)
    print(done.stdout.strip().rsplit("\n", 1)[-1], f"(all of it: {WORK / 'log.txt'})")
    results = dict((name, word) for word, name in re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (unit/\S+?::.*?)(?: - .*)?$", done.stdout, re.M))
    (WORK / "results.txt").write_text("".join(f"{word} {name}\n" for name, word in sorted(results.items())))
    if compare:
        compare_page(results)


def compare_page(results):
    """A test that passes and is listed as failing, or the other way round, is an error: the page has to be true."""
    page = (ROOT / "docs" / "llama-cpp-tests.md").read_text()
    listed = set(re.findall(r"`(test_\w+(?:\[[^`]*\])?)`", page))
    failing = {re.sub(r"\[.*", "", name.split("::", 1)[1]) for name, word in results.items() if word in ("FAILED", "ERROR")}
    passed = sum(word == "PASSED" for word in results.values())
    unlisted, healed = failing - listed, {name for name in listed if name not in failing}
    print(f"{passed} passed, {len(results) - passed} not; not listed: {sorted(unlisted)}; listed and passing: {sorted(healed)}")
    sys.exit(1 if unlisted or healed else 0)


if __name__ == "__main__":
    main()
