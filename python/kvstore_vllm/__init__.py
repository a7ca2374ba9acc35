"""kvstore inside vLLM: a KV connector that keeps prompt prefixes on SSD and streams them back.

    --kv-transfer-config '{"kv_connector": "KVStoreConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "kvstore_vllm.connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"paths": ["/nvme0/kv"]}}'

`kvstore_vllm.tier` is the other seat: a secondary tier below vLLM's own CPU tier. Importing this
package does not import vLLM; those two do. See docs/VLLM.md.
"""
