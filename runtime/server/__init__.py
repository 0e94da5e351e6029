"""The engine over HTTP: OpenAI's routes, vLLM's admin routes, sessions over a WebSocket.

Read `app` first (which routes exist and what guards them), then `front` (how a request reaches
the engine and its tokens come back as text). This module imports nothing.
"""
