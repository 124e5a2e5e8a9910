"""Libraries and programs that others build on, each against the scripted server. Their packages have an environment of their
own: some of them want an older openai than the newest, which tests/server has."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("server_conftest", Path(__file__).parents[1] / "server" / "conftest.py")
server_conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server_conftest)
scripted = server_conftest.scripted
