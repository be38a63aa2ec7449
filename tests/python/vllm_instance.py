"""One real vLLM on the CPU, in one process, for tests/engines: a line RESULT with what it gave,
hit, stored and loaded. The argument is a JSON object: model, and perhaps socket, revision,
copy_threads, codec, head_units, load_format ("dummy"), persist, stop_pid, dtype, adapter (a
directory), metrics (then also vLLM's own of the connector), tier_socket (the tier form instead of
the connector), stages and ranks (pipeline, and tensor parallel, a process a worker), beside (names
of connectors, ours among them: all of them in a MultiConnector), prompts (so many long ones instead
of the usual: then also what was delivered), plugin (the connector by its name alone, as the
installed wheel says it), crowd (then instead what so many prompts are answered, CROWD at a time;
alone without a cache of vLLM's own), hints (then instead what prompts of several lengths cost, and
prompts that say something of their blocks), events, a directory where the daemon has its socket
`replay` of KV events, relay (with events: the connector has vLLM publish what it knows of blocks;
then also what each medium was said to have), and costs: then also the share of a step that hooks
take."""
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def watch(half, all_pages, stored, loaded):
    """Notes a digest of every block that is stored or loaded. all_pages: of each share."""
    store_one, copy_one = half._store, half._copy

    def digests(message, count=None):
        return [hashlib.sha256(pages.read(block)).hexdigest()
                for pages, share in zip(all_pages, half.shares)
                for block in message.block_ids[share.group][:count] if block >= 0]

    def store(message):
        stored.extend(digests(message))
        return store_one(message)

    def copy(loading):
        count = copy_one(loading)
        loaded.extend(digests(loading.load, count))
        return count

    half._store, half._copy = store, copy


HOOKS = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc",
         "build_connector_meta", "update_connector_output", "request_finished_all_groups",
         "has_pending_push_work", "take_events", "handle_preemptions", "start_load_kv",
         "wait_for_layer_load", "save_kv_layer", "wait_for_save", "get_transfer_results",
         "get_block_ids_with_load_errors", "build_connector_worker_meta")


def count_time(connectors):
    """Sums what the hooks take of their thread's CPU time, and what of that is copying blocks."""
    spent = {"hooks": 0.0, "copies": 0.0}

    def wrap(owner, name, what):
        call = getattr(owner, name)

        def timed(*arguments, **named):
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                spent[what] += time.thread_time() - began

        setattr(owner, name, timed)

    for connector in connectors:
        for name in HOOKS:
            wrap(connector, name, "hooks")
        if getattr(connector.side, "worker", None) is not None:
            wrap(connector.side.worker, "_store", "copies")
    return spent


def measure_costs(llm, sampling, connectors):
    """Prompts that nobody has stored, several at once."""
    prompts = [{"prompt_token_ids": [(i * 11 + s * 131) % 499 for i in range(800)]}
               for s in range(8)]
    llm.generate(prompts[:1], sampling, use_tqdm=False)
    spent = count_time(connectors)
    began = time.monotonic()
    llm.generate(prompts[1:], sampling, use_tqdm=False)
    wall_s = time.monotonic() - began
    return {"wall_s": wall_s, "hooks_s": spent["hooks"], "copies_s": spent["copies"]}


LONG_TOKENS = 4096


def measure_delivery(llm, options, scheduler, worker):
    """Long prompts, one by one; what of each was there, and what came."""
    import terrace
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=2, temperature=0, detokenize=False)
    llm.generate([{"prompt_token_ids": [1, 2, 3]}], sampling, use_tqdm=False)
    result = {"outputs": [], "cached": [], "seconds": []}
    for number in range(options["prompts"]):
        prompt = [(i * 7 + number * 131 + i // 500 * number) % 500 for i in range(LONG_TOKENS)]
        began = time.monotonic()
        (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        result["seconds"].append(time.monotonic() - began)
        result["outputs"].append(list(output.outputs[0].token_ids))
        result["cached"].append(output.num_cached_tokens)
    while scheduler.side.scheduler is not None and scheduler.has_pending_push_work():
        llm.generate([{"prompt_token_ids": [4, 5, 6]}], sampling, use_tqdm=False)
    half = worker.side.worker
    result["block_bytes"] = sum(space.block_bytes for space in half.group.spec.members)
    result["block_tokens"] = half.group.block_tokens
    result.update({**half.counters, **scheduler.side.scheduler.counters},
                  dropped_in_worker=half.counters["dropped_stores"], refusal=scheduler.side.refusal)
    with terrace.Client(options["socket"], default_timeout_s=10.0) as client:
        client.wait_connected(10.0)
        deadline = time.monotonic() + 60
        while True:
            document = client.stats()
            stats = document["domain"]
            below = sum(tier["persisted_block_count"] for tier in document["lower_tiers"])
            if below >= stats["block_count"] or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        result["daemon"] = {name: stats[name] for name in (
            "block_count", "blocks_evicted", "reserve_no_space", "acquire_blocks_hit",
            "acquire_blocks_lost", "acquire_blocks_by_tier")}
        result["daemon"]["persisted"] = below
    return result


CROWD = 64  # requests at a time
HEADS, HEAD_TOKENS, END_TOKENS = 100, 256, 32


def crowd_prompts(model, count):
    """Heads that several prompts have, of documents, and ends of their own, of sources."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def stretches(paths, number, length):
        tokens = [token for path in sorted(paths) for token in tokenizer.encode(path.read_text())]
        step = (len(tokens) - length) // max(number - 1, 1)
        return [tokens[i * step:i * step + length] for i in range(number)]

    heads = stretches((ROOT / "docs").glob("*.md"), HEADS, HEAD_TOKENS)
    ends = stretches((ROOT / "client/python/terrace").glob("*.py"), count, END_TOKENS)
    return [{"prompt_token_ids": heads[i % HEADS] + end} for i, end in enumerate(ends)]


def measure_crowd(llm, options, scheduler):
    """All of them handed in at once."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=16, temperature=0, detokenize=False, ignore_eos=True)
    prompts = crowd_prompts(options["model"], options["crowd"])
    began = time.monotonic()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    result = {"answers": [list(output.outputs[0].token_ids) for output in outputs],
              "seconds": time.monotonic() - began}
    if scheduler is not None:
        result.update(scheduler.side.scheduler.counters, refusal=scheduler.side.refusal)
        while scheduler.has_pending_push_work():
            llm.generate([{"prompt_token_ids": [4, 5, 6]}], sampling, use_tqdm=False)
    return result


HINT_LENGTHS = (1024, 1536, 2048, 2560, 3072)
SAID = {"terrace_priority": 80, "terrace_ttl_s": 3000, "terrace_pin": True,
        "terrace_no_store": True}
CALL_TOKEN = 77  # that begins a call of a tool, in the check


def measure_hints(llm, scheduler):
    """What a prefill costs: each prompt with nothing of it anywhere, then with all of it in vLLM's
    own cache, then, when that has been emptied, from the daemon. Then prompts with parameters."""
    from vllm import SamplingParams

    def generate(prompt, **named):
        sampling = SamplingParams(max_tokens=1, temperature=0, detokenize=False, **named)
        began = time.monotonic()
        (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        return time.monotonic() - began, output

    def empty_own_cache():
        while scheduler.has_pending_push_work():
            generate([4, 5, 6])
        if not llm.llm_engine.reset_prefix_cache():
            raise RuntimeError("vLLM's own cache was not emptied")

    prompts = [[(i * 7 + number * 131 + i // 500 * number) % 490 for i in range(length)]
               for number, length in enumerate(HINT_LENGTHS * 2)]
    for number in range(4):  # what steps take is learned from these
        generate([(i * 13 + number * 97) % 490 for i in range(2048)])
    result = {"cold": [], "own": [], "warm": [], "cached": []}
    for prompt in prompts:
        result["cold"].append(generate(prompt)[0])
        result["own"].append(min(generate(prompt)[0] for _ in range(3)))
    empty_own_cache()
    before = dict(scheduler.side.scheduler.counters)
    for prompt in prompts:
        seconds, output = generate(prompt)
        result["warm"].append(seconds)
        result["cached"].append(output.num_cached_tokens)
    result["coefficients"] = scheduler.side.hints.cost.coefficients
    result["hit_tokens"] = scheduler.side.scheduler.counters["hit_tokens"] - before["hit_tokens"]
    for number, named in enumerate((
            {"extra_args": {"kv_transfer_params": SAID}}, {"extra_args": SAID},
            {"extra_args": {"terrace_priority": "high", "terrace_nothing": 1}})):
        generate([(i * 3 + number) % 480 for i in range(320)], **named)
    empty_own_cache()
    return {**result, "refusal": scheduler.side.refusal,
            **{name: value for name, value in scheduler.side.scheduler.counters.items()
               if name not in result}}


def events_of(endpoint):
    """All BlockStored events so far, read with vLLM's own classes."""
    import msgspec
    import zmq
    from vllm.distributed.kv_events import BlockStored, KVEventBatch

    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    found = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            if not socket.poll(30_000):
                raise TimeoutError(endpoint)
            number, payload = socket.recv_multipart()[-2:]
            if number == b"\xff" * 8:
                return found
            found += [event for event in decoder.decode(payload).events
                      if isinstance(event, BlockStored)]


def stored_hashes(endpoint):
    """{medium: hashes}."""
    found = {}
    for event in events_of(endpoint):
        found.setdefault(event.medium, set()).update(event.block_hashes)
    return {medium: sorted(hashes) for medium, hashes in found.items()}


def offloading(*tiers):
    """vLLM's own CPU tier, with these below it."""
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec", "spec_module_path": "vllm_cpu_tiering",
                "cpu_bytes_to_use": 64 << 20, "secondary_tiers": list(tiers)}}


def child_of(name, ours):
    """One of a MultiConnector's."""
    if name == "TerraceConnector":
        return ours
    if name == "OffloadingConnector":
        return offloading()
    return {"kv_connector": name, "kv_role": "kv_both", "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "recompute"}


def blocks_said(endpoint):
    """{medium: {hash: what vLLM's stream says of the block}}, of all BlockStored events so far."""
    found = {}
    for event in events_of(endpoint):
        parent, size = event.parent_block_hash, event.block_size
        for i, block in enumerate(event.block_hashes):
            found.setdefault(event.medium, {})[str(block)] = [
                parent, list(event.token_ids[i * size:(i + 1) * size]), size, event.lora_id,
                event.lora_name, event.extra_keys and event.extra_keys[i], event.group_idx]
            parent = block
    return found


def await_blocks(llm, sampling, options, scheduler):
    """Steps until vLLM has published what was stored."""
    deadline = time.monotonic() + 30
    while True:
        llm.generate([{"prompt_token_ids": [4, 5, 6]}], sampling, use_tqdm=False)
        said = blocks_said(f"ipc://{options['events']}/engine-replay")
        wanted = scheduler.side.scheduler.counters["stored_blocks"]
        if len(said.get("CPU", ())) >= wanted or time.monotonic() > deadline:
            return said
        time.sleep(0.1)


def arguments_of(options):
    """What an LLM is made with, beside the model."""
    named = {}
    if "tier_socket" in options:
        named["kv_transfer_config"] = offloading({
            "type": "TerraceTier", "module_path": "terrace.vllm_tier",
            "socket": options["tier_socket"], "revision": "1", "timeout_ms": 10_000})
    if "socket" in options:
        extra = {"socket": options["socket"]}
        extra.update({name: options[name] for name in ("revision", "copy_threads", "codec",
                                                          "head_units") if name in options})
        if "relay" in options:
            extra["kv_events"] = {"daemon": f"ipc://{options['events']}/events",
                                  "daemon_replay": f"ipc://{options['events']}/replay"}
        named["kv_transfer_config"] = {
            "kv_connector": "TerraceConnector", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
        if "plugin" not in options:
            named["kv_transfer_config"]["kv_connector_module_path"] = "terrace.vllm"
    if "beside" in options:
        ours = named["kv_transfer_config"]
        children = [child_of(name, ours) for name in options["beside"]]
        named["kv_transfer_config"] = {
            "kv_connector": "MultiConnector", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": children}}
    if "metrics" in options:
        named["disable_log_stats"] = False
    if "events" in options:
        named["kv_events_config"] = {
            "enable_kv_cache_events": True, "publisher": "zmq",
            "endpoint": f"ipc://{options['events']}/engine",
            "replay_endpoint": f"ipc://{options['events']}/engine-replay"}
    if "adapter" in options:
        named.update(enable_lora=True, max_lora_rank=8)
    if is_distributed(options):
        named.update(pipeline_parallel_size=options.get("stages", 1),
                     tensor_parallel_size=options.get("ranks", 1),
                     distributed_executor_backend="mp",
                     worker_cls="vllm_cpu_worker.PipelineWorker")
    return named


def lora_of(options):
    """What requests name their adapter by."""
    if "adapter" not in options:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest("tuned", 1, options["adapter"])


def ours_of(connector):
    """Of several in a MultiConnector."""
    return next((each for each in getattr(connector, "sub_connectors", ())
                 if type(each).__name__ == "TerraceConnector"), connector)


def connectors_of(llm, options):
    """The scheduler's, and, where it is in this process, the worker's."""
    if "socket" not in options:
        return None, None
    scheduler = ours_of(llm.llm_engine.engine_core.engine_core.scheduler.connector)
    if is_distributed(options):
        return scheduler, None
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return scheduler, ours_of(get_kv_transfer_group())


def is_distributed(options):
    """Whether the workers are in processes of their own."""
    return "stages" in options or "ranks" in options


def persist(llm, half, sampling):
    """What the last request left is stored by the next step, then it goes to NVMe."""
    while half.has_work:
        llm.generate([{"prompt_token_ids": [4, 5, 6]}], sampling, use_tqdm=False)
    time.sleep(1.0)


def prompts_of_the_check():
    """Two that differ, and one that begins as the first."""
    prompts = [{"prompt_token_ids": [(i * 7 + s) % 500 for i in range(300)]} for s in (1, 2)]
    prompts.append({"prompt_token_ids": prompts[0]["prompt_token_ids"][:200] + [3] * 60})
    return prompts


def measured(llm, options, scheduler, worker):
    """What one of the special ways gives; None: the usual prompts are wanted."""
    if "costs" in options:
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=32, temperature=0, detokenize=False)
        return measure_costs(llm, sampling, [scheduler, worker])
    if "hints" in options:
        return measure_hints(llm, scheduler)
    if "crowd" in options:
        return measure_crowd(llm, options, scheduler)
    return measure_delivery(llm, options, scheduler, worker) if "prompts" in options else None


def main():
    options = json.loads(sys.argv[1])
    if is_distributed(options):  # else it wants a NUMA node a worker
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(
            str(rank % os.cpu_count())
            for rank in range(options.get("stages", 1) * options.get("ranks", 1)))
    if "crowd" in options:  # GiB of KV
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"
    import torch
    import vllm
    from vllm import LLM, SamplingParams

    named = arguments_of(options)
    llm = LLM(model=options["model"], load_format=options.get("load_format", "dummy"),
              skip_tokenizer_init=True,
              enforce_eager=True, dtype=options.get("dtype", "float32"),
              max_model_len=LONG_TOKENS + 64 if {"prompts", "hints"} & set(options) else 1024,
              block_size=32, max_num_seqs=CROWD if "crowd" in options else 4,
              enable_prefix_caching="socket" in options or "crowd" not in options, **named)
    stored, loaded = [], []
    scheduler, worker = connectors_of(llm, options)
    # Not of long prompts: a digest gives the GIL away, and then waits 5 ms for it.
    if worker is not None and worker.side.worker is not None and not \
            {"prompts", "hints", "crowd"} & set(options):
        watch(worker.side.worker, worker.side._pages, stored, loaded)
    if "stop_pid" in options:
        os.kill(options["stop_pid"], signal.SIGSTOP)
    result = measured(llm, options, scheduler, worker)
    if result is not None:
        result["versions"] = vllm.__version__
        print("RESULT " + json.dumps(result), flush=True)
        return
    # Warm up what the first request pays for, with a prompt too short to be stored.
    sampling = SamplingParams(max_tokens=4, temperature=0, logprobs=1, detokenize=False)
    lora = lora_of(options)
    llm.generate([{"prompt_token_ids": [1, 2, 3]}], sampling, use_tqdm=False, lora_request=lora)
    if scheduler is not None:
        scheduler.side.adapters.wait_read()  # its files have been read
    began = time.monotonic()
    outputs = []
    for prompt in prompts_of_the_check():  # one by one: always the same batch shapes
        for result in llm.generate([prompt], sampling, use_tqdm=False, lora_request=lora):
            output = result.outputs[0]
            outputs.append([list(output.token_ids),
                            [list(step.values())[0].logprob for step in output.logprobs]])
    result = {"outputs": outputs, "seconds": time.monotonic() - began,
              "versions": f"vLLM {vllm.__version__}, torch {torch.__version__}, "
                          f"Python {sys.version.split()[0]}"}
    if "tier_socket" in options:
        (tier,) = llm.llm_engine.engine_core.engine_core.scheduler.connector.connector_scheduler \
            .manager.secondary_tiers
        tier.drain_jobs()
        llm.generate([{"prompt_token_ids": [4, 5, 6]}], sampling, use_tqdm=False)  # it counts them
        result.update(tier.counters, refusal=tier.refusal)
    if "metrics" in options:
        result["metrics"] = {metric.name: metric.value for metric in llm.get_metrics()
                             if metric.name.startswith("vllm:terrace_")}
    if "events" in options:
        result["engine_events"] = stored_hashes(f"ipc://{options['events']}/engine-replay")
        result["daemon_events"] = stored_hashes(f"ipc://{options['events']}/replay")
    if "relay" in options:
        result["said"] = await_blocks(llm, sampling, options, scheduler)
    if scheduler is not None:
        half = scheduler.side.scheduler
        counters = half.counters if half is not None else {"hit_tokens": 0, "stored_blocks": 0}
        result.update(counters, refusal=scheduler.side.refusal, stored=stored, loaded=loaded)
        if half is not None and options.get("persist"):
            persist(llm, half, sampling)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
