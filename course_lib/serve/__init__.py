"""The engine behind a streaming HTTP endpoint that OpenAI's clients can use."""
