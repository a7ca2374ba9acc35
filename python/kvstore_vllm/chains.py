"""From an engine's request to the keys of its blocks."""

import os
from typing import Any

import numpy as np

from kvstore import Cache, Chain


class Chains:
    """own: kvstore's chain over token ids, with what else decides a block's values as extras; else
    the engine's hashes, which hold salt, adapter, images and embeddings already.

    Since `renew` all keys are others than before, and than those of any other engine.
    """

    def __init__(self, cache: Cache, *, own: bool) -> None:
        self._cache = cache
        self._own = own
        self._salt = b""

    def renew(self) -> None:
        self._salt = os.urandom(16)

    def of(self, request: Any) -> Chain:
        """All whole blocks of the request's known tokens: prompt and output so far."""
        if not self._own:
            return self._cache.wrap([bytes(key) for key in request.block_hashes], salt=self._salt)
        if request.prompt_embeds is not None:
            return Chain(b"", self._cache.layout.block_tokens)
        extras = [
            ("image", feature.mm_position.offset, feature.identifier.encode())
            for feature in request.mm_features
        ]
        adapter = request.lora_request
        if adapter is not None:
            extras.append(("adapter", 0, f"{adapter.lora_name}\0{adapter.lora_path}".encode()))
        tokens = np.fromiter(request.all_token_ids, dtype=np.int32, count=request.num_tokens)
        salt = self._salt + (request.cache_salt or "").encode()
        return self._cache.keys(tokens, salt=salt, extras=extras)
