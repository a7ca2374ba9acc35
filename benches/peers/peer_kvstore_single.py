"""kvstore by single keys; see peer_kvstore.py."""

from benches.peers.peer_kvstore import SingleBlocks

open_peer = SingleBlocks
