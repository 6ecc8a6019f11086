"""Embedding: the adapters of the Embedder port, one for a model in a process of its own, one for remote endpoints."""
