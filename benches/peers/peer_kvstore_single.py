"""kvstore by single keys; see peer_kvstore.py."""

from peer_kvstore import SingleBlocks

open_peer = SingleBlocks
