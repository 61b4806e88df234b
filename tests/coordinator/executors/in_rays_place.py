"""Code that the driver's process finds where it imports ray: a Ray that does nothing, or acts by itself."""

from __future__ import annotations

import os

import pytest

__all__ = ["ACTING", "WORKING", "in_rays_place"]

WORKING = """
__version__ = "0"
class exceptions: pass
def init(**options): pass
def nodes(): return []
def remote(**options): return lambda function: function
def shutdown(): pass
class util:
    @staticmethod
    def get_node_ip_address(): return "127.0.0.1"
"""
# One node, whose tasks run in the driver's own process.
ACTING = (
    WORKING
    + """
import sys, types

NODE = {
    "NodeID": "a1", "Alive": True, "Resources": {"CPU": 2.0},
    "NodeManagerAddress": "127.0.0.1", "NodeManagerHostname": "here",
}
strategies = types.ModuleType("ray.util.scheduling_strategies")
strategies.NodeAffinitySchedulingStrategy = lambda *args, **options: None
sys.modules["ray.util"] = types.ModuleType("ray.util")
sys.modules["ray.util.scheduling_strategies"] = strategies
def nodes(): return [NODE]
class Task:
    def __init__(self, run): self.run = run
    def options(self, **options): return self
    async def remote(self, *args):
        async def here(item): return item
        for item in self.run(*args): yield here(item)
def remote(**options): return Task
def cancel(generator, force): pass
def answer(event, context): return {"text": "x" * event["size"]}
"""
)


@pytest.fixture
def in_rays_place(tmp_path, monkeypatch):
    """Makes ``import ray`` find this code in processes that are started from now on."""

    def put(code):
        (tmp_path / "ray.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return put
