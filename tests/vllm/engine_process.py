"""An engine in a process of its own: reads one JSON object, prints one line of JSON per round.

{"model", "kv", "words": engine arguments, "prompts", "rounds", "stay": wait to be killed}
"""

import json
import sys
import time


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    job = json.load(sys.stdin)
    kv = job.get("kv")
    llm = LLM(
        job["model"],
        kv_transfer_config=KVTransferConfig(**kv) if kv else None,
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        disable_log_stats=False,
        **job.get("words", {}),
    )
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    wanted = [{"prompt_token_ids": tokens} for tokens in job["prompts"]]
    for number in range(job.get("rounds", 1)):
        if number:
            time.sleep(job.get("pause_s", 0))
            llm.reset_prefix_cache()
        outs = llm.generate(wanted, sampling, use_tqdm=False)
        answer = {
            "tokens": [list(out.outputs[0].token_ids) for out in outs],
            "cached": [out.num_cached_tokens for out in outs],
            "from_disk": sum(
                found.value
                for found in llm.get_metrics()
                if found.name == "vllm:prompt_tokens_cached_by_source"
                and found.labels["source"] == "disk"
            ),
        }
        print("ANSWER", json.dumps(answer), flush=True)
    while job.get("stay"):
        time.sleep(1)


if __name__ == "__main__":
    main()
