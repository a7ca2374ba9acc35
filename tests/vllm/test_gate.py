"""Load or compute in a real engine: a hit that is refused is computed, counted and kept."""

from engines import prompt, running, transfer

PROMPTS = [prompt(700, 61), prompt(353, 62)]


def test_a_hit_that_is_computed_sooner_is_computed_and_counted_with_its_reason(model_of, tmp_path):
    words = {"gate": True, "load_gbps": 1e-6, "prefill_tps": 1e6}
    with running(model_of("llama"), transfer(tmp_path, **words)) as engine:
        expected = engine.tokens(PROMPTS)
        engine.forget()
        found = engine.run(PROMPTS)
        assert [list(out.outputs[0].token_ids) for out in found] == expected
        assert [out.num_cached_tokens for out in found] == [0, 0]
        assert engine.metric("vllm:kvstore_skips", reason="gate") == 2
        assert engine.metric("vllm:kvstore_loads") == 0
        assert engine.metric("vllm:prompt_tokens_cached_by_source", source="disk") == 0
        # Steps were measured meanwhile; what a load costs was not, so the price given stays.
        gate = engine.connector.scheduler.gate
        assert gate.load.value == 1e3
        assert gate.compute.value != 1e6
