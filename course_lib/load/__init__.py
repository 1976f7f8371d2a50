"""The load generator: it sends users who stream, and a long prompt among them, and measures what the users wait.

It knows servers by their address only, so it measures any that speaks OpenAI's protocol, ours or another.
"""
