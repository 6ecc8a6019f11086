"""Generated from protos/hivemem/v1 by protos/generate.py. Never edited."""
