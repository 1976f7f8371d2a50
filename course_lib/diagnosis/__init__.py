"""What differs between two KV caches, and which mistake does that."""
