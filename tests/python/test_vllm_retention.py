"""What a vLLM request asks for its blocks for a time, on a real daemon."""
import random
import time

from vllm_driver import expect_nothing_held, make_engine
from test_vllm_hints import listed, serve


def test_a_priority_of_a_range_ends_with_its_duration_and_hits_renew_a_time_to_live(daemon):
    said = {"terrace_retention": {"token_range_retention_configs": [
        {"token_start": 0, "token_end": 16, "priority": 90, "duration_ms": 1500}]}}
    engine = make_engine(daemon, random.Random(7))
    serve(engine, says=said)
    assert [block["priority"] for block in listed(daemon)] == [90, 90] + [35] * 8
    serve(engine, "other", tokens=[9] * 40, says={"terrace_ttl_s": 600,
                                                  "terrace_ttl_from_hits": True})
    deadline = time.monotonic() + 30
    while any(block["priority"] != 35 for block in listed(daemon)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(listed(daemon)) == 15
    assert sum(500 < (block["expires_in_s"] or 0) <= 601 for block in listed(daemon)) == 5
    expect_nothing_held(daemon, engine)
