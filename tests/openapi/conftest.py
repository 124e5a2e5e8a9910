"""The scripted server, as tests/server starts it."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("server_conftest", Path(__file__).parents[1] / "server" / "conftest.py")
server_conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server_conftest)
scripted = server_conftest.scripted
