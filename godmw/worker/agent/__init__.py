"""The agent: starts, watches and stops the worker processes of one host, and never imports torch."""

from godmw.worker.agent.shell import run_agent as run_agent

__all__ = ["run_agent"]
