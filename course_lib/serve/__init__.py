"""The engine behind a streaming endpoint, and a load generator for any OpenAI-compatible one."""
