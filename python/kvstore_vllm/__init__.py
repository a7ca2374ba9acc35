"""kvstore inside vLLM: a KV connector that keeps prompt prefixes on SSD and streams them back.

    --kv-transfer-config '{"kv_connector": "KVStoreConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "kvstore_vllm.connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"paths": ["/nvme0/kv"]}}'

Importing this package does not import vLLM; `kvstore_vllm.connector` does. See docs/VLLM.md.
"""
